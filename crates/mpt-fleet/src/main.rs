//! `mpt-fleet`: peers of many servers from one registry.

use std::io::Read as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use base64ct::{Base64UrlUnpadded, Encoding as _};
use clap::{Args, Parser, Subcommand};
use ipnet::IpNet;
use mpt_fleet::Failure;
use mpt_fleet::api::{self, ApiServer};
use mpt_fleet::config::{Config, DEFAULT_FILE, Sites};
use mpt_fleet::daemon;
use mpt_fleet::edit::Registry;
use mpt_fleet::etcd::{EtcdClient, follow};
use mpt_fleet::fleet::{Fleet, Inputs};
use mpt_fleet::invitation::{Invitation, lifetime};
use mpt_fleet::join::{self, Joins, now};
use mpt_fleet::lease::{self, Registration};
use mpt_fleet::registry::{Key, Load, Name, Peer, Prefix, Server, ServerId, network};
use mpt_fleet::server_list::{ClusterKey, ServerList, SignedList};
use nix::sys::stat::{Mode, umask};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, Semaphore, mpsc, watch};

/// Peers of many MPT servers from one registry in etcd
#[derive(Parser)]
#[command(name = "mpt-fleet", version = env!("MPT_VERSION"))]
struct Cli {
    /// The configuration
    #[arg(long, global = true, default_value = DEFAULT_FILE)]
    config: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Answer the peer source of the tunnel on this host
    Run,
    /// Peers of the registry
    #[command(subcommand)]
    Peer(PeerCommand),
    /// Servers of the registry
    #[command(subcommand)]
    Server(ServerCommand),
    /// Make a line with which a site joins by itself: mpt join LINE
    Invite {
        #[command(flatten)]
        site: SiteArguments,
        /// The server at which it joins, and which it prefers; default: that of this host
        #[arg(long, value_name = "ID")]
        at: Option<ServerId>,
        /// The time for which the line is valid
        #[arg(long, value_name = "TIME", default_value = "1h", value_parser = lifetime)]
        expires: Duration,
    },
    /// Make the line for a site void
    Uninvite {
        /// The name of the site
        name: Name,
    },
    /// Make the sites of a server move to others
    Drain {
        /// The server
        id: ServerId,
        /// Admit sites again
        #[arg(long)]
        end: bool,
    },
    /// Make the key that signs lists of servers, and print the public one
    ClusterKey {
        /// The new file
        file: PathBuf,
    },
    /// Make a token for HTTP, and the hash for the configuration
    Token,
}

#[derive(Subcommand)]
enum PeerCommand {
    /// Admit a site
    Add {
        /// Its public key
        key: Key,
        #[command(flatten)]
        site: SiteArguments,
    },
    /// End the sessions of a site and admit it no more
    Revoke {
        /// Its public key
        key: Key,
    },
    /// Delete a site
    Delete {
        /// Its public key
        key: Key,
    },
    /// Show all sites
    List,
}

/// The record of a new site.
#[derive(Args)]
struct SiteArguments {
    /// The name of the site
    #[arg(long)]
    name: Name,
    /// A network of the site inside the tunnel; repeat for more
    #[arg(long = "network", required = true, value_parser = network)]
    networks: Vec<IpNet>,
    /// A server that may admit it; repeat for more, leave out for all
    #[arg(long = "server")]
    servers: Option<Vec<ServerId>>,
}

impl SiteArguments {
    fn peer(self) -> Peer {
        Peer { name: self.name, networks: self.networks, servers: self.servers, revoked: false }
    }
}

#[derive(Subcommand)]
enum ServerCommand {
    /// Show the servers that run
    List,
    /// Sign the list of servers, and publish it for all sites
    Publish {
        /// The file with the key of the cluster
        #[arg(long, value_name = "FILE", required_unless_present = "signed", conflicts_with = "signed")]
        key: Option<PathBuf>,
        /// A list that was signed elsewhere
        #[arg(long, value_name = "FILE")]
        signed: Option<PathBuf>,
        /// A server that is in the list and is to be left out; repeat for more
        #[arg(long, value_name = "ID")]
        remove: Vec<ServerId>,
        /// Publish; without it, the changes are shown
        #[arg(long)]
        yes: bool,
    },
    /// Show the list that publish would sign
    Draft {
        /// A server that is in the list and is to be left out; repeat for more
        #[arg(long, value_name = "ID")]
        remove: Vec<ServerId>,
    },
    /// Sign a list from standard input, without the registry
    Sign {
        /// The file with the key of the cluster
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
    },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_target(false).with_ansi(false).init();
    // The socket is for its owner alone.
    umask(Mode::from_bits_truncate(0o177));
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(run(cli)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}

async fn run(cli: Cli) -> Result<(), Failure> {
    match &cli.command {
        Command::Token => return token(),
        Command::ClusterKey { file } => {
            println!("servers_key = \"{}\"", ClusterKey::create(file)?.public());
            return Ok(());
        }
        Command::Server(ServerCommand::Sign { key }) => return sign(key),
        _ => {}
    }
    let config = Config::load(&cli.config)?;
    let etcd = Arc::new(EtcdClient::new(&config.etcd)?);
    let registry = Registry { etcd: Arc::clone(&etcd), prefix: Prefix::new(&config.cluster) };
    match cli.command {
        Command::Run => serve(config, etcd, registry).await,
        Command::Peer(PeerCommand::Add { key, site }) => registry.add(&key, &site.peer()).await,
        Command::Peer(PeerCommand::Revoke { key }) => registry.revoke(&key).await,
        Command::Peer(PeerCommand::Delete { key }) => registry.delete(&key).await,
        Command::Invite { site, at, expires } => {
            let Sites { routes, dns } = config.sites;
            if routes.is_empty() {
                eprintln!(
                    "warning: the site reaches nothing through the tunnel without mpt join --default-route\n  \
                     hint: [sites] with routes = [\"10.88.0.0/24\"] in {}",
                    cli.config.display()
                );
            }
            let invitation =
                Invitation { peer: site.peer(), expires: now() + expires.as_secs(), routes, dns, used: None };
            let line = registry.invite(&invitation, at.unwrap_or(config.server_id)).await?;
            println!("mpt join {line}");
            Ok(())
        }
        Command::Uninvite { name } => registry.uninvite(&name).await,
        Command::Peer(PeerCommand::List) => {
            for (_, Invitation { peer, expires, .. }) in registry.open_invitations().await? {
                let left = expires.saturating_sub(now()).div_ceil(60);
                eprintln!("{}: has not joined; its line is valid for {left} min", peer.name);
            }
            for (key, peer) in registry.peers().await? {
                let networks: Vec<_> = peer.networks.iter().map(IpNet::to_string).collect();
                println!("{key} {} {}{}", peer.name, networks.join(","), if peer.revoked { " revoked" } else { "" });
            }
            Ok(())
        }
        Command::Server(ServerCommand::List) => {
            for (id, (server, draining)) in registry.servers().await? {
                let addresses: Vec<_> = server.addresses.iter().map(SocketAddr::to_string).collect();
                let key = server.public_key.map_or_else(|| "not-connected".to_owned(), |key| key.to_string());
                let Load { sessions, in_use } = server.load;
                let state = if draining { " draining" } else { "" };
                println!("{id} {key} {} {sessions} sessions, {in_use} in use{state}", addresses.join(","));
            }
            Ok(())
        }
        Command::Server(ServerCommand::Publish { key: Some(key), remove, yes, .. }) => {
            let key = ClusterKey::read(&key)?;
            print!("{}", registry.publish(&config.cluster, &key, &remove, yes).await?);
            Ok(())
        }
        Command::Server(ServerCommand::Publish { signed, yes, .. }) => {
            let signed = read_signed(&signed.unwrap_or_default())?;
            print!("{}", registry.publish_signed(&config.cluster, &signed, yes).await?);
            Ok(())
        }
        Command::Server(ServerCommand::Draft { remove }) => {
            println!("{}", registry.draft(&config.cluster, &remove).await?);
            Ok(())
        }
        Command::Drain { id, end } => registry.drain(id, !end).await,
        Command::Token | Command::ClusterKey { .. } | Command::Server(ServerCommand::Sign { .. }) => Ok(()),
    }
}

async fn serve(config: Config, etcd: Arc<EtcdClient>, registry: Registry) -> Result<(), Failure> {
    let socket = daemon::bind(&config.socket)?;
    let http = api::bind(config.api.listen).await?;
    let (events, tunnel) = mpsc::channel(1024);
    let (news_sender, news) = mpsc::channel(64);
    let (lease_sender, leases) = mpsc::channel(4);
    let (scrape_sender, scrapes) = mpsc::channel(16);
    let (result_sender, results) = mpsc::unbounded_channel();
    let (seen, again) = (Arc::new(AtomicU64::new(0)), Arc::new(Notify::new()));
    let record = Server {
        addresses: config.addresses.clone(),
        public_key: None,
        enrolment_key: None,
        load: Load::default(),
        instance: lease::instance(),
    };
    let (server, server_receiver) = watch::channel(record);
    let joins = Joins {
        registry: Registry { etcd: Arc::clone(&etcd), prefix: registry.prefix.clone() },
        server: config.server_id,
        slots: Semaphore::new(join::MAX_AT_A_TIME),
    };
    tokio::spawn(daemon::serve(socket, events, Arc::new(joins)));
    tokio::spawn(follow::follow(
        Arc::clone(&etcd),
        registry.prefix.as_str().to_owned(),
        news_sender,
        Arc::clone(&again),
    ));
    let api = ApiServer {
        tokens: config.api.tokens.clone(),
        has_open_metrics: config.api.listen.ip().is_loopback(),
        registry,
        server: config.server_id,
        sites: config.sites.clone(),
        scrapes: scrape_sender,
    };
    tokio::spawn(api::serve(http, Arc::new(api)));
    let registration = Registration {
        etcd: Arc::clone(&etcd),
        config: config.clone(),
        server: server_receiver,
        seen: Arc::clone(&seen),
        again,
        leases: lease_sender,
    };
    let fleet = Fleet::new(config, etcd, server, seen, result_sender);
    let stop = stop()?;
    tokio::select! {
        () = fleet.run(Inputs { tunnel, news, leases, scrapes, results }, stop) => Ok(()),
        failure = registration.run() => Err(failure),
    }
}

/// Returns when a signal ends the process.
fn stop() -> Result<impl Future<Output = ()>, Failure> {
    let on =
        |kind| signal(kind).map_err(|error| Failure::new(format!("cannot wait for signals: {error}"), "restart it"));
    let (mut terminate, mut interrupt) = (on(SignalKind::terminate())?, on(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// Signs the list on standard input.
fn sign(key: &Path) -> Result<(), Failure> {
    let hint = "mpt-fleet server draft prints a list to sign";
    let list = std::io::read_to_string(std::io::stdin().take(MAX_DRAFT))
        .map_err(|error| Failure::new(format!("cannot read standard input: {error}"), hint))?;
    let list: ServerList =
        serde_json::from_str(&list).map_err(|error| Failure::new(format!("no list of servers: {error}"), hint))?;
    print!("{}", ClusterKey::read(key)?.sign(&list, now(), 0)?.text);
    Ok(())
}

fn read_signed(path: &Path) -> Result<SignedList, Failure> {
    let bytes = std::fs::read(path).map_err(|error| {
        Failure::new(format!("cannot read {}: {error}", path.display()), "mpt-fleet server sign makes such a file")
    })?;
    SignedList::read(&bytes)
}

/// The most bytes of a list that is to be signed.
const MAX_DRAFT: u64 = 64 << 10;

fn token() -> Result<(), Failure> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| Failure::new(format!("no random numbers: {error}"), "try again"))?;
    let token = Base64UrlUnpadded::encode_string(&bytes);
    let hash: String = digest(&SHA256, token.as_bytes()).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    println!("token: {token}\nhash:  sha256:{hash}");
    Ok(())
}

#[cfg(test)]
#[path = "../../mpt/tests/guide/pages.rs"]
mod pages;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::{blocks, without_synopsis};

    #[test]
    fn every_command_in_the_guide_is_accepted_by_the_command_line() {
        let mut count = 0;
        for block in blocks().iter().filter(|block| block.may_be_shell()) {
            for words in block.commands().iter().filter(|words| words[0] == "mpt-fleet") {
                if let Err(error) = Cli::try_parse_from(without_synopsis(words, &[])) {
                    panic!("{}: {words:?}\n{error}", block.place);
                }
                count += 1;
            }
        }
        assert!(count >= 2, "{count} commands were found");
    }
}
