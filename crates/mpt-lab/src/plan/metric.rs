//! Metrics: names, units, and the better direction.

use serde::{Deserialize, Serialize};

/// A metric of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Received payload per second.
    Goodput,
    /// Duration of a download.
    Download,
    /// Share of datagrams that were lost.
    Lost,
    /// Longest time without a received byte during an outage.
    Gap,
    /// Time from the end of an outage to 90 % of the rate before it.
    Recovery,
    /// Mean one-way delay.
    Delay,
    /// Variance of the one-way delay.
    DelayVariance,
    /// Mean difference of consecutive one-way delays.
    Jitter,
    /// Variance of the jitter.
    JitterVariance,
    /// Median one-way delay of a call beside the load.
    VoiceDelay,
    /// 99th percentile of the call's one-way delay.
    VoiceDelayP99,
    /// Median minus the median of the same call without the load.
    VoiceAdded,
    /// 99th percentile minus that median.
    VoiceAddedP99,
    /// Mean difference of the call's consecutive one-way delays.
    VoiceJitter,
    /// Share of the call's packets that were lost.
    VoiceLost,
    /// Longest time without a packet of the call.
    VoiceGap,
    /// Median round-trip time beside the load.
    Ping,
    /// 99th percentile of the round-trip time.
    PingP99,
    /// Share of echo requests that were not answered.
    PingLost,
    /// Median round-trip time minus the median without the load.
    PingAdded,
    /// 99th percentile minus that median.
    PingAddedP99,
}

impl Metric {
    /// Returns the name in plans and results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Goodput => "goodput",
            Self::Download => "download",
            Self::Lost => "lost",
            Self::Gap => "gap",
            Self::Recovery => "recovery",
            Self::Delay => "delay",
            Self::DelayVariance => "delay_variance",
            Self::Jitter => "jitter",
            Self::JitterVariance => "jitter_variance",
            Self::VoiceDelay => "voice_delay",
            Self::VoiceDelayP99 => "voice_delay_p99",
            Self::VoiceAdded => "voice_added",
            Self::VoiceAddedP99 => "voice_added_p99",
            Self::VoiceJitter => "voice_jitter",
            Self::VoiceLost => "voice_lost",
            Self::VoiceGap => "voice_gap",
            Self::Ping => "ping",
            Self::PingP99 => "ping_p99",
            Self::PingLost => "ping_lost",
            Self::PingAdded => "ping_added",
            Self::PingAddedP99 => "ping_added_p99",
        }
    }

    /// Returns the unit.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Goodput => "Mbit/s",
            Self::Download => "s",
            Self::Lost | Self::VoiceLost | Self::PingLost => "%",
            Self::DelayVariance | Self::JitterVariance => "ms²",
            Self::Gap | Self::Recovery | Self::Delay | Self::Jitter | Self::Ping | Self::PingP99 => "ms",
            Self::VoiceDelay | Self::VoiceDelayP99 | Self::VoiceJitter | Self::VoiceGap => "ms",
            Self::VoiceAdded | Self::VoiceAddedP99 | Self::PingAdded | Self::PingAddedP99 => "ms",
        }
    }

    /// Returns the title for tables and pictures.
    pub fn title(self) -> &'static str {
        match self {
            Self::Goodput => "goodput",
            Self::Download => "duration of the download",
            Self::Lost => "datagrams lost",
            Self::Gap => "longest gap",
            Self::Recovery => "time to the full rate",
            Self::Delay => "mean one-way delay",
            Self::DelayVariance => "variance of the one-way delay",
            Self::Jitter => "mean jitter",
            Self::JitterVariance => "variance of the jitter",
            Self::VoiceDelay => "voice, one-way delay, median",
            Self::VoiceDelayP99 => "voice, one-way delay, p99",
            Self::VoiceAdded => "voice, added by the load, median",
            Self::VoiceAddedP99 => "voice, added by the load, p99",
            Self::VoiceJitter => "voice, mean jitter",
            Self::VoiceLost => "voice, packets lost",
            Self::VoiceGap => "voice, longest gap",
            Self::Ping => "ping beside the load, median",
            Self::PingP99 => "ping beside the load, p99",
            Self::PingLost => "ping, requests without an answer",
            Self::PingAdded => "ping, added by the load, median",
            Self::PingAddedP99 => "ping, added by the load, p99",
        }
    }

    /// Returns true if higher values are better.
    pub fn more_is_better(self) -> bool {
        self == Self::Goodput
    }
}
