//! Counters, in the text format of Prometheus.

use std::fmt::Write as _;

/// The counters.
#[derive(Debug, Default)]
pub struct Metrics {
    /// The watch reports changes.
    pub is_following: bool,
    /// Questions that were answered by a peer.
    pub admitted: u64,
    /// Questions that were answered by a refusal.
    pub refused: u64,
    /// Questions that came before the first copy of the registry, beyond the limit.
    pub unanswered: u64,
    /// Sessions that ended because of a change of the registry.
    pub removed: u64,
    /// Sessions that ended because of another server's claim.
    pub contradicted: u64,
    /// Writes of owners.
    pub writes: u64,
    /// Requests for owners without an answer.
    pub failed_writes: u64,
    /// Lines of the tunnel that are no messages.
    pub nonsense: u64,
    /// Watches that ended.
    pub watch_ended: u64,
    /// Leases that were lost.
    pub leases_lost: u64,
}

impl Metrics {
    /// Returns the counters, and these gauges.
    pub fn text(&self, gauges: &[(&str, &str, u64)]) -> String {
        let mut text = String::new();
        let mut family = |kind: &str, name: &str, help: &str, samples: &[(&str, u64)]| {
            let _ = writeln!(text, "# HELP mpt_fleet_{name} {help}.\n# TYPE mpt_fleet_{name} {kind}");
            for (labels, value) in samples {
                let _ = writeln!(text, "mpt_fleet_{name}{labels} {value}");
            }
        };
        family("gauge", "etcd_connected", "The watch of etcd reports changes", &[("", u64::from(self.is_following))]);
        for (name, help, value) in gauges {
            family("gauge", name, help, &[("", *value)]);
        }
        let questions = [
            ("{answer=\"admitted\"}", self.admitted),
            ("{answer=\"refused\"}", self.refused),
            ("{answer=\"none\"}", self.unanswered),
        ];
        family("counter", "questions_total", "Questions of the tunnel", &questions);
        let ended = [("{reason=\"registry\"}", self.removed), ("{reason=\"owner\"}", self.contradicted)];
        family("counter", "sessions_ended_total", "Sessions that the tunnel was to end", &ended);
        family("counter", "owner_writes_total", "Writes of owners", &[("", self.writes)]);
        family("counter", "owner_failures_total", "Requests for owners without an answer", &[("", self.failed_writes)]);
        family("counter", "bad_lines_total", "Lines of the tunnel that are no messages", &[("", self.nonsense)]);
        family("counter", "watch_ends_total", "Watches of etcd that ended", &[("", self.watch_ended)]);
        family("counter", "leases_lost_total", "Leases that were lost", &[("", self.leases_lost)]);
        text
    }
}
