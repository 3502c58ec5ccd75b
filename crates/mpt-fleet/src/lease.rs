//! The lease of this server and its record `servers/ID`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::sys::utsname::uname;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use crate::Failure;
use crate::config::Config;
use crate::etcd::{Change, Error, EtcdClient};
use crate::registry::{Place, Prefix, Server};

/// The registration of this server.
pub struct Registration {
    /// The registry.
    pub etcd: Arc<EtcdClient>,
    /// The configuration.
    pub config: Config,
    /// The record to write.
    pub server: watch::Receiver<Server>,
    /// The revision up to which the watch has reported.
    pub seen: Arc<AtomicU64>,
    /// Ends a watch that does not report.
    pub again: Arc<Notify>,
    /// Takes the lease while there is one and the server is registered.
    pub leases: mpsc::Sender<Option<u64>>,
}

enum RegistrationOutcome {
    Written(u64),
    /// The number is taken, by this instance.
    Taken(String),
}

impl Registration {
    /// Keeps the server registered.
    ///
    /// # Errors
    /// Another server with this number stays registered.
    pub async fn run(self) -> Failure {
        let mut taken_since = None;
        let mut was_registered = false;
        loop {
            let lease = match self.etcd.grant(self.config.lease()).await {
                Ok(lease) => lease,
                Err(error) => {
                    self.warn_of(&error);
                    self.again.notify_one();
                    sleep(RETRY).await;
                    continue;
                }
            };
            match self.write(lease, 0).await {
                Ok(RegistrationOutcome::Written(revision)) => {
                    info!("server {} is registered", self.config.server_id);
                    (taken_since, was_registered) = (None, true);
                    let _ = self.leases.send(Some(lease)).await;
                    self.renew(lease, revision).await;
                    let _ = self.leases.send(None).await;
                    continue;
                }
                Ok(RegistrationOutcome::Taken(by)) => {
                    let since = *taken_since.get_or_insert_with(|| {
                        warn!("server_id {} is registered by {by}; waits until its lease ends", self.config.server_id);
                        Instant::now()
                    });
                    if since.elapsed() > 2 * self.config.lease() {
                        let failure = self.taken(&by);
                        if !was_registered {
                            return failure;
                        }
                        warn!("{failure}");
                        taken_since = None;
                    }
                }
                Err(error) => self.warn_of(&error),
            }
            let _ = self.etcd.revoke(lease).await;
            sleep(RETRY).await;
        }
    }

    fn warn_of(&self, error: &Error) {
        warn!("cannot register server {}: {error}; tries again{}", self.config.server_id, error.hint());
    }

    fn taken(&self, by: &str) -> Failure {
        let id = self.config.server_id;
        Failure::new(
            format!("server_id {id} is in use by another server of the cluster: {by}"),
            "give each server its own server_id, in fleet.toml and in the file of the tunnel; \
             mpt-fleet server list shows those in use",
        )
    }

    /// Renews the lease and the record until the lease has expired, or may have.
    async fn renew(&self, lease: u64, mut revision: u64) {
        let (mut renewed, mut written) = (Instant::now(), Instant::now());
        let mut behind = 0;
        loop {
            sleep(self.config.lease() / 4).await;
            let asked = Instant::now();
            match self.etcd.renew(lease).await {
                Ok(true) => renewed = asked,
                Ok(false) => {
                    warn!("the lease of server {} has expired; registers again", self.config.server_id);
                    return;
                }
                Err(error) if renewed.elapsed() > self.config.lease() => {
                    warn!("{error}; sessions stay, and no site is taken over until etcd answers{}", error.hint());
                    self.again.notify_one();
                    return;
                }
                // A watch at a member that is silent notices nothing by itself.
                Err(_) => {
                    self.again.notify_one();
                    continue;
                }
            }
            if written.elapsed() < UPDATE {
                continue;
            }
            // The watch must have reported the previous update by now; to read everything again takes some seconds.
            let seen = self.seen.load(Ordering::Relaxed);
            behind = if seen > 0 && seen < revision { behind + 1 } else { 0 };
            if behind == 2 {
                self.again.notify_one();
                behind = 0;
            }
            match self.write(lease, revision).await {
                Ok(RegistrationOutcome::Written(new)) => (revision, written) = (new, Instant::now()),
                Ok(RegistrationOutcome::Taken(by)) => {
                    warn!("{}", self.taken(&by));
                    return;
                }
                Err(_) => {}
            }
        }
    }

    /// Writes the record if it is absent, ours, or nobody's.
    async fn write(&self, lease: u64, revision: u64) -> Result<RegistrationOutcome, Error> {
        let key = Prefix::new(&self.config.cluster).key(&Place::Server(self.config.server_id));
        let server = self.server.borrow().clone();
        let value = serde_json::to_vec(&server).map_err(|error| Error::Away(error.to_string()))?;
        let mut expected = revision;
        for _ in 0..3 {
            let changed = self.etcd.change(&Change { key: &key, expected, value: Some((&value, lease)) }).await?;
            if changed.is_made {
                return Ok(RegistrationOutcome::Written(changed.revision));
            }
            expected = match changed.found {
                None => 0,
                Some(found) => {
                    let other = found.value.as_deref().and_then(|bytes| serde_json::from_slice::<Server>(bytes).ok());
                    match other {
                        // Without a lease, no server wrote it.
                        Some(other) if found.lease != 0 && other.instance != server.instance => {
                            return Ok(RegistrationOutcome::Taken(other.instance));
                        }
                        _ => found.revision,
                    }
                }
            };
        }
        Err(Error::Away(format!("the record {key} changes all the time")))
    }
}

/// Returns a name for this process: host, process and a random number.
pub fn instance() -> String {
    let host = uname().map(|names| names.nodename().to_string_lossy().into_owned()).unwrap_or_default();
    let mut random = [0; 4];
    let _ = getrandom::fill(&mut random);
    format!("{}, process {}, {:08x}", host, std::process::id(), u32::from_ne_bytes(random))
}

/// Between attempts to register.
const RETRY: Duration = Duration::from_secs(1);
/// Between updates of the record.
const UPDATE: Duration = Duration::from_secs(5);
