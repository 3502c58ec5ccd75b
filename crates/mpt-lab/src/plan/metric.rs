//! What is measured: names, units, and which way is better.

use serde::{Deserialize, Serialize};

/// A figure of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Payload at the receiver.
    Goodput,
    /// How long a download took.
    Download,
    /// Share of datagrams that did not arrive.
    Lost,
    /// The longest time without a byte while something was wrong with a path.
    Gap,
    /// From the end of an outage to 90 % of the rate before it.
    Recovery,
    /// Mean one-way delay.
    Delay,
    /// Its variance.
    DelayVariance,
    /// Mean difference of consecutive one-way delays.
    Jitter,
    /// Its variance.
    JitterVariance,
    /// Median one-way delay of a call beside the load.
    VoiceDelay,
    /// 99th percentile of it.
    VoiceDelayP99,
    /// Median above that of the same call without the load.
    VoiceAdded,
    /// 99th percentile above that median.
    VoiceAddedP99,
    /// Mean difference of its consecutive one-way delays.
    VoiceJitter,
    /// Share of its packets that did not arrive.
    VoiceLost,
    /// The longest time without one of its packets.
    VoiceGap,
    /// Median round trip beside the load.
    Ping,
    /// 99th percentile of it.
    PingP99,
    /// Share of echo requests that were not answered.
    PingLost,
    /// Median round trip above that without the load.
    PingAdded,
    /// 99th percentile above that median.
    PingAddedP99,
}

impl Metric {
    /// Its name in plans and results.
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

    /// What one of it is.
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

    /// What people call it.
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

    /// Whether more of it is better.
    pub fn more_is_better(self) -> bool {
        self == Self::Goodput
    }
}
