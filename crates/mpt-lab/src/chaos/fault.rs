//! Faults: their kinds, limits, and how they are made.

use super::{descriptors, scene::Scene, traffic::RunningTraffic};
use crate::{
    error::Result,
    topology::{Host, interface},
};
use mpt_sim::seed::Seed;
use std::{
    fmt, thread,
    time::{Duration, Instant},
};

/// Kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Host A's daemon is killed and started again.
    KillInitiator,
    /// Host B's daemon is killed and started again.
    KillResponder,
    /// A daemon gets no processor.
    Stop,
    /// An interface is down.
    Down,
    /// An interface is down, has another name for a while, and then the first again.
    Rename,
    /// A cable is pulled.
    Unplug,
    /// A path loses all frames, and its interfaces stay up.
    Blackhole,
    /// Host A gets another address on a path, and later the first again.
    Renumber,
    /// A host's NAT gives it another port on a path, three times.
    Rebind,
    /// A path drops packets above 1400 bytes.
    Mtu,
    /// A path's frames overtake each other.
    Reorder,
    /// A path's datagrams arrive twice.
    Duplicate,
    /// A path loses bursts of frames.
    LossBursts,
    /// Another program deletes the tunnel's rules and routes.
    Routing,
    /// Another program deletes all tables of nftables.
    Nftables,
    /// A daemon receives SIGHUP every 10 ms.
    Reloads,
    /// A daemon stops while thousands of addresses come and go, so that netlink discards events.
    Overrun,
    /// The disk with host A's state is full, while its daemon is killed and started again.
    FullDisk,
    /// The control socket receives random bytes on many connections.
    Garbage,
    /// A daemon has no descriptor left: clients hold them all.
    Descriptors,
}

impl FaultKind {
    /// All kinds, in the order of the report.
    pub const ALL: [Self; 20] = [
        Self::KillInitiator,
        Self::KillResponder,
        Self::Stop,
        Self::Down,
        Self::Rename,
        Self::Unplug,
        Self::Blackhole,
        Self::Renumber,
        Self::Rebind,
        Self::Mtu,
        Self::Reorder,
        Self::Duplicate,
        Self::LossBursts,
        Self::Routing,
        Self::Nftables,
        Self::Reloads,
        Self::Overrun,
        Self::FullDisk,
        Self::Garbage,
        Self::Descriptors,
    ];

    /// Returns the name in the report.
    pub fn name(self) -> &'static str {
        match self {
            Self::KillInitiator => "A killed, restarted",
            Self::KillResponder => "B killed, restarted",
            Self::Stop => "SIGSTOP, SIGCONT",
            Self::Down => "interface down",
            Self::Rename => "interface renamed",
            Self::Unplug => "cable pulled",
            Self::Blackhole => "blackhole",
            Self::Renumber => "address changed",
            Self::Rebind => "NAT rebinding",
            Self::Mtu => "path MTU 1400",
            Self::Reorder => "reordering",
            Self::Duplicate => "duplication",
            Self::LossBursts => "loss bursts",
            Self::Routing => "rules, routes deleted",
            Self::Nftables => "nftables flushed",
            Self::Reloads => "reload storm",
            Self::Overrun => "netlink overrun",
            Self::FullDisk => "A killed, disk full",
            Self::Garbage => "control garbage",
            Self::Descriptors => "no descriptors left",
        }
    }

    /// Returns the longest recovery that passes.
    pub fn limit(self) -> Duration {
        Duration::from_secs(match self {
            // A session that answers nothing is replaced after 1 s of silence (docs/protocol.md); the handshake is
            // repeated after up to 5 s if its first message is lost with the old process.
            Self::KillInitiator | Self::KillResponder | Self::FullDisk => 5,
            Self::Stop | Self::Overrun | Self::Routing => 3,
            // Failover: the other path carries on.
            _ => 2,
        })
    }
}

/// One fault of a schedule.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Its kind.
    pub kind: FaultKind,
    /// The host that it affects.
    pub host: Host,
    path: usize,
    hold: Duration,
}

impl Fault {
    /// Returns the fault with this number, from 1, in the schedule of `seed`. The kinds come in rounds, so that each
    /// is as frequent as any other.
    pub(super) fn draw(seed: Seed, number: usize) -> Self {
        let kinds = FaultKind::ALL;
        let unit = |label: &str| seed.fork(&format!("fault {number} {label}")).unit();
        let (round, place) = ((number - 1) / kinds.len(), (number - 1) % kinds.len());
        let mut order: Vec<FaultKind> = kinds.into();
        order.sort_by_key(|kind| seed.fork(&format!("round {round} {kind:?}")).0);
        let kind = order[place];
        let host = match kind {
            FaultKind::KillInitiator
            | FaultKind::FullDisk
            | FaultKind::Routing
            | FaultKind::Rename
            | FaultKind::Rebind => Host::A,
            FaultKind::KillResponder => Host::B,
            _ if unit("host") < 0.5 => Host::A,
            _ => Host::B,
        };
        Self {
            kind,
            host,
            path: usize::from(unit("path") < 0.5),
            hold: Duration::from_millis(500 + (unit("hold") * 2_500.0) as u64),
        }
    }

    /// Makes the fault, holds it, ends it. Returns the blackout, the time in which no path could work.
    pub(super) fn inflict(&self, scene: &mut Scene, traffic: &RunningTraffic) -> Result<Duration> {
        let begin = Instant::now();
        let Self { host, path, hold, .. } = *self;
        match self.kind {
            FaultKind::KillInitiator | FaultKind::KillResponder => {
                scene.kill(host);
                thread::sleep(hold / 4);
                scene.start(host)?;
                return Ok(begin.elapsed());
            }
            FaultKind::Stop => {
                scene.signal(host, "STOP")?;
                thread::sleep(hold);
                scene.signal(host, "CONT")?;
                return Ok(begin.elapsed());
            }
            FaultKind::Down => {
                let set = |state| scene.topology.host(host).ip(&format!("link set {} {state}", interface(path)));
                set("down")?;
                thread::sleep(hold);
                set("up")?;
            }
            FaultKind::Rename => {
                let (name, other) = (interface(path), format!("was{path}"));
                let rename = |from: &str, to: &str| {
                    let host = scene.topology.host(host);
                    host.ip(&format!("link set {from} down\nlink set {from} name {to}\nlink set {to} up"))
                };
                rename(&name, &other)?;
                thread::sleep(hold);
                rename(&other, &name)?;
            }
            FaultKind::Unplug => {
                scene.topology.unplug(path, host)?;
                thread::sleep(hold);
                scene.topology.plug(path, host)?;
            }
            FaultKind::Blackhole => {
                scene.topology.cut(path);
                thread::sleep(hold);
                scene.topology.restore(path);
            }
            FaultKind::Renumber => {
                scene.topology.renumber(path, true)?;
                thread::sleep(hold);
                scene.topology.renumber(path, false)?;
            }
            FaultKind::Rebind => {
                for mapping in 1..=REBINDINGS {
                    scene.map_ports(host, path, mapping)?;
                    thread::sleep(hold / REBINDINGS);
                }
                scene.end_mapping(host)?;
            }
            FaultKind::Mtu => scene.with_link(path, "mtu=1400B", hold),
            FaultKind::Reorder => scene.with_link(path, "jitter=uniform:4ms,order=free", hold),
            FaultKind::LossBursts => scene.with_link(path, "loss=bursts:2%:20%:100%", hold),
            FaultKind::Duplicate => {
                scene.duplicate(host, path)?;
                thread::sleep(hold);
                scene.end_duplication(host)?;
            }
            FaultKind::Routing => scene.delete_routing()?,
            FaultKind::Nftables => drop(scene.topology.host(host).sh("nft flush ruleset")?),
            FaultKind::Reloads => scene.reload_storm(host, hold)?,
            FaultKind::Overrun => {
                scene.signal(host, "STOP")?;
                let overrun = scene.overrun_netlink(host);
                scene.signal(host, "CONT")?;
                overrun?;
                return Ok(begin.elapsed());
            }
            FaultKind::FullDisk => {
                scene.fill_disk(host)?;
                scene.kill(host);
                scene.start(host)?;
                let blackout = begin.elapsed();
                thread::sleep(hold);
                scene.clear_disk(host)?;
                return Ok(blackout);
            }
            FaultKind::Garbage => scene.garbage(host),
            FaultKind::Descriptors => descriptors::exhaust(scene, host, traffic)?,
        }
        Ok(Duration::ZERO)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, host {:?}, path {}, {:.1?}", self.kind.name(), self.host, self.path + 1, self.hold)
    }
}

/// Ports that the NAT gives one after the other.
const REBINDINGS: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_has_every_kind_once_and_depends_only_on_the_seed() {
        let kinds =
            |seed| (1..=FaultKind::ALL.len()).map(|number| Fault::draw(Seed(seed), number).kind).collect::<Vec<_>>();
        assert!(FaultKind::ALL.iter().all(|kind| kinds(7).contains(kind)));
        assert_eq!(kinds(7), kinds(7));
        assert_ne!(kinds(7), kinds(8));
    }
}
