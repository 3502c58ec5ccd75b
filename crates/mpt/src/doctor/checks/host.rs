//! Clock, kernel and processor.

use super::{Outcome, unless, warning};
use crate::config::model::Mode;
use crate::control::report::{PathReport, PeerReport};
use crate::doctor::facts::Facts;

pub fn clock_behind(facts: &Facts) -> Outcome {
    let Some((file, ahead)) = &facts.host.future_file else { return Some(Vec::new()) };
    let cause = format!("the clock is at least {} s behind: {} was written later", ahead.as_secs(), file.display());
    Some(vec![warning(
        cause,
        "set the clock: timedatectl set-ntp true; peers refuse handshakes that are older than the last one",
    )])
}

pub fn clock_synchronised(facts: &Facts) -> Outcome {
    unless(facts.host.clock_synchronised?, || {
        warning("no time service keeps the clock of this host right", "timedatectl set-ntp true, or install chrony")
    })
}

pub fn offload(facts: &Facts) -> Outcome {
    let problems = &facts.host.socket.as_ref()?.offload_problems;
    let file = facts.file()?;
    if !file.offload {
        return None;
    }
    unless(problems.is_empty(), || {
        let cause = format!("the kernel handles one datagram at a time ({})", problems.join(", "));
        warning(cause, "a kernel from 5.0 on has both; a container's runtime (gVisor) may lack them")
    })
}

pub fn receive_buffer(facts: &Facts) -> Outcome {
    if !facts.is_root {
        return None;
    }
    let (has, wanted) = facts.host.socket.as_ref()?.receive_buffer;
    unless(has >= wanted, || {
        let cause =
            format!("the kernel limits the receive buffer of a socket to {has} bytes of {wanted}: bursts are lost");
        warning(cause, format!("sysctl -w net.core.rmem_max={wanted}, on the host of a container"))
    })
}

pub fn aes(facts: &Facts) -> Outcome {
    if *facts.file()?.mode != Mode::Native {
        return None;
    }
    unless(facts.host.aes?, || {
        warning(
            "the processor has no instructions for AES: it encrypts with ChaCha20-Poly1305, at some hundred Mbit/s",
            "enable AES for the virtual machine (CPU type host), or use another machine for faster links",
        )
    })
}

/// BBR fills a far path from the beginning only if its start-up queues more than the difference of the delays on the
/// near one (`docs/design/ack-delay.md`). With one-way delays of 10 ms it filled one of 30 ms, a part of one of 40 ms,
/// and none of one of 60 ms; with 8 ms, a part of one of 30 ms.
pub fn bbr(facts: &Facts) -> Outcome {
    let congestion = facts.host.congestion.as_ref()?;
    let peers = &facts.report()?.peers;
    if !congestion.starts_with("bbr") {
        return Some(Vec::new());
    }
    let finding = |peer: &PeerReport| {
        let all: u64 = peer.paths.iter().filter_map(|path| path.rate_bits_per_s).sum();
        let is_useful = |path: &&PathReport| path.rate_bits_per_s.is_none_or(|rate| rate >= all / USEFUL);
        let usable = || peer.paths.iter().filter(|path| path.up && !path.standby && !path.overflow);
        let rtts = || usable().filter_map(|path| Some((empty_rtt(path)?, path)));
        let near = rtts().min_by_key(|(rtt, _)| *rtt)?;
        let far = rtts().filter(|(_, path)| is_useful(path)).max_by_key(|(rtt, _)| *rtt)?;
        let is_unused = peer.scheduler == "earliest" && far.0.saturating_sub(near.0) > (near.0 * 8 / 3).max(SHORT_US);
        is_unused.then(|| {
            let cause = format!(
                "{}: TCP connections of this host use BBR, which may leave {} ({} ms) unused beside {} ({} ms) for half \
                 a minute or more",
                peer.name,
                far.1.name,
                far.0 / 1_000,
                near.1.name,
                near.0 / 1_000
            );
            let cure = "for new connections: sysctl -w net.ipv4.tcp_congestion_control=cubic, and the same line in \
                        /etc/sysctl.d; or scheduler = \"weighted\" with the rate of each path as its weight";
            warning(cause, cure)
        })
    };
    Some(peers.iter().filter_map(finding).collect())
}

/// Returns the round trip of a path in microseconds, without the queue that load adds.
fn empty_rtt(path: &PathReport) -> Option<u64> {
    path.srtt_us.map(|rtt| rtt.saturating_sub(path.queue_us.unwrap_or(0)))
}

/// BBR fills paths whose round trips differ by less than this.
const SHORT_US: u64 = 10_000;
/// Part of all rates from which on a path is missed.
const USEFUL: u64 = 10;
