//! Every behavioural constant of the core, grouped by mechanism, and a switch for each heuristic.
//!
//! A constant states its source: an RFC, a draft, a paper, the kernel, or the measurement that chose it. Numbers of the
//! wire format, of cryptography and of memory layout are in the files that use them.
//!
//! A [`Heuristic`] can be switched off, for ablation: `mpt-lab matrix --without NAME` measures what it is worth.
//! `docs/design/ablation.md` has the results. All rules are on by default, and the configuration file has no key for
//! them.

pub(crate) mod cc;
pub(crate) mod initiations;
pub(crate) mod inner;
pub(crate) mod moderation;
pub(crate) mod path;
pub(crate) mod peer;
pub(crate) mod queue;
pub(crate) mod reorder;
pub(crate) mod repair;
pub(crate) mod sched;
pub(crate) mod server_list;
pub(crate) mod servers;
pub(crate) mod unknown_keys;

use std::fmt;
use std::str::FromStr;

/// A heuristic that can be switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heuristic {
    /// Delays inner ACKs that return too early for BBR, on paths with jitter or unlike delays.
    AckDelay,
    /// Reserves the path with the lowest RTT for flows that send little, where it adds next to nothing to bulk.
    ReservedPath,
    /// Reserves paths that add less to bulk than waiting for their packets costs.
    NegligiblePaths,
    /// Lets a short transfer use a slow line alone while the other paths are in start-up and far away.
    StartupBacklog,
    /// Estimates the rate of a slow link from the delays of small and large datagrams before the link is filled.
    LinkRate,
    /// Sends duplicates of new packets on a path whose rate is unknown.
    DuplicateProbes,
    /// Counts the queue of a path in start-up as delay.
    StartupOverhang,
    /// Doubles the predicted rate of a path in start-up with each round trip.
    StartupGrowth,
    /// Sends at most eight ACKs of a young inner TCP flow in a round trip.
    AckFilter,
    /// Finds the inner sender's rounds from TCP timestamps.
    SenderRounds,
    /// Lets a flow's queue stand for 3/4 of its round trip or 1.5 times the spread of the paths' delays.
    QueueTarget,
    /// Limits the receive window in inner ACKs, so that a flow's queue does not exceed its target.
    WindowLimit,
    /// Lets the queue stand longer for 30 s after the paths' rates fell.
    RateShortage,
    /// Gives a slow path packets from further behind in the queue.
    SendAhead,
    /// Probes idle paths every 250 ms while packets wait.
    IdleProbes,
    /// Delivers pure inner ACKs without waiting for earlier packets.
    AckOvertake,
    /// Shapes bursts of inner UDP that reordering releases.
    UdpShaper,
    /// Compresses the headers of inner packets.
    HeaderCompression,
    /// Sends repair symbols.
    Fec,
    /// Sends no repair symbols while the processor of either end limits the tunnel.
    ProcessorLoad,
    /// Judges a new path beside another one by 20 to 64 probes before it carries data.
    InitialProbes,
    /// Remembers the jitter of lone datagrams while the path is busy.
    JitterMemory,
    /// Takes the mean sojourn over more samples where delays vary more.
    SojournSpread,
    /// Leaves start-up later where deliveries come in bursts.
    BurstyStartup,
    /// Accepts a queue that stays after ours was emptied as a part of the path.
    StandingQueue,
    /// Paths that share a bottleneck empty their queues together, and probe as one.
    SharedBottleneck,
    /// Repeats path status until the peer follows it.
    StatusRepeat,
    /// Releases the memory of an idle peer.
    IdleMemory,
    /// Sends ACKs and a handshake response over every path while the best one is in doubt.
    Spread,
    /// Lets input wait for a share of the RTT under load.
    Moderation,
    /// Makes the next probe longer if one raised the rate without a queue, but was too short to show a faster path.
    LongerProbes,
}

impl Heuristic {
    /// Every rule with its name.
    pub const NAMES: &'static [(&'static str, Self)] = &[
        ("ack_delay", Self::AckDelay),
        ("reserved_path", Self::ReservedPath),
        ("negligible_paths", Self::NegligiblePaths),
        ("startup_backlog", Self::StartupBacklog),
        ("link_rate", Self::LinkRate),
        ("duplicate_probes", Self::DuplicateProbes),
        ("startup_overhang", Self::StartupOverhang),
        ("startup_growth", Self::StartupGrowth),
        ("ack_filter", Self::AckFilter),
        ("sender_rounds", Self::SenderRounds),
        ("queue_target", Self::QueueTarget),
        ("window_limit", Self::WindowLimit),
        ("rate_shortage", Self::RateShortage),
        ("send_ahead", Self::SendAhead),
        ("idle_probes", Self::IdleProbes),
        ("ack_overtake", Self::AckOvertake),
        ("udp_shaper", Self::UdpShaper),
        ("header_compression", Self::HeaderCompression),
        ("fec", Self::Fec),
        ("processor_load", Self::ProcessorLoad),
        ("initial_probes", Self::InitialProbes),
        ("jitter_memory", Self::JitterMemory),
        ("sojourn_spread", Self::SojournSpread),
        ("bursty_startup", Self::BurstyStartup),
        ("standing_queue", Self::StandingQueue),
        ("shared_bottleneck", Self::SharedBottleneck),
        ("status_repeat", Self::StatusRepeat),
        ("idle_memory", Self::IdleMemory),
        ("spread", Self::Spread),
        ("moderation", Self::Moderation),
        ("longer_probes", Self::LongerProbes),
    ];

    /// Returns its name.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, rule)| *rule == self).map_or("", |(name, _)| name)
    }
}

/// No rule has this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownRule(pub String);

impl fmt::Display for UnknownRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = Heuristic::NAMES.iter().map(|(name, _)| *name).collect();
        write!(f, "no rule is called \"{}\"\nhint: the rules are {}", self.0, names.join(", "))
    }
}

impl std::error::Error for UnknownRule {}

impl FromStr for Heuristic {
    type Err = UnknownRule;

    fn from_str(name: &str) -> Result<Self, UnknownRule> {
        let rule = Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, rule)| *rule);
        rule.ok_or_else(|| UnknownRule(name.to_owned()))
    }
}

/// The rules that are on. The default is all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    off: u32,
}

impl Tuning {
    /// Switches a rule off.
    #[must_use]
    pub const fn without(self, rule: Heuristic) -> Self {
        Self { off: self.off | 1 << rule as u32 }
    }

    /// Returns true if a rule is on.
    pub const fn has(self, rule: Heuristic) -> bool {
        self.off & 1 << rule as u32 == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_on_until_it_is_switched_off_and_has_a_name_of_its_own() {
        for (name, rule) in Heuristic::NAMES {
            let tuning = Tuning::default().without(*rule);
            let off: Vec<_> = Heuristic::NAMES.iter().filter(|(_, rule)| !tuning.has(*rule)).collect();
            assert_eq!(off, [&(*name, *rule)]);
            assert_eq!((name.parse(), rule.name()), (Ok(*rule), *name));
        }
        assert!("luck".parse::<Heuristic>().is_err_and(|why| why.to_string().contains("ack_delay")));
    }
}
