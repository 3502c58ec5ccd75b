//! Serde model of a plan file: one struct per table, one field per key. Text that is parsed later keeps its position.

use super::{
    metric::Metric,
    model::{Action, Beside, Congestion, Figure, Reference},
    problem::{PlanText, Problem},
};
use serde::Deserialize;
use std::{collections::BTreeMap, fmt, path::Path};
use toml::Spanned;

/// Text or a number, in which `{axis}` is replaced by a value.
pub(super) type Text = Spanned<Value>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PlanFile {
    pub(super) key: Spanned<String>,
    pub(super) title: String,
    pub(super) paper: String,
    pub(super) seconds: Spanned<f64>,
    pub(super) quick_seconds: Option<Spanned<f64>>,
    #[serde(default = "once")]
    pub(super) repetitions: Spanned<u32>,
    #[serde(default)]
    pub(super) figure: Figure,
    #[serde(default)]
    pub(super) axis: Vec<AxisFile>,
    #[serde(default)]
    pub(super) case: Vec<CaseFile>,
    #[serde(default)]
    pub(super) paths: Vec<Text>,
    /// Number of times that the list of paths is repeated.
    pub(super) copies: Option<Text>,
    pub(super) weights: Option<Vec<Text>>,
    pub(super) scheduler: Option<Text>,
    pub(super) mtu: Option<Spanned<usize>>,
    pub(super) inner: Option<Text>,
    pub(super) outer: Option<Text>,
    pub(super) traffic: Option<Spanned<TrafficFile>>,
    #[serde(default)]
    pub(super) event: Vec<EventFile>,
    #[serde(default)]
    pub(super) published: BTreeMap<Metric, Spanned<Published>>,
    /// One list for each path.
    #[serde(default)]
    pub(super) published_solo: Vec<Spanned<Vec<f64>>>,
    #[serde(default)]
    pub(super) claim: Vec<Spanned<ClaimFile>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AxisFile {
    pub(super) name: String,
    #[serde(default)]
    pub(super) unit: String,
    pub(super) values: Spanned<Vec<Value>>,
    /// Values of a quick run; all, if absent.
    pub(super) quick: Option<Vec<Value>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CaseFile {
    pub(super) name: Spanned<String>,
    #[serde(default = "yes")]
    pub(super) quick: bool,
    pub(super) paths: Option<Vec<Text>>,
    pub(super) traffic: Option<Spanned<TrafficFile>>,
    pub(super) event: Option<Vec<EventFile>>,
    #[serde(default)]
    pub(super) published: BTreeMap<Metric, f64>,
    #[serde(default)]
    pub(super) published_solo: Vec<f64>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TrafficFile {
    pub(super) kind: TrafficKind,
    #[serde(default)]
    pub(super) congestion: Congestion,
    #[serde(default = "once")]
    pub(super) streams: Spanned<u32>,
    pub(super) mbit: Option<f64>,
    pub(super) block: Option<usize>,
    pub(super) window: Option<usize>,
    pub(super) payload: Option<Spanned<usize>>,
    pub(super) mbyte: Option<u64>,
    pub(super) count: Option<u32>,
    #[serde(default)]
    pub(super) beside: Vec<Beside>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum TrafficKind {
    Tcp,
    Paced,
    Udp,
    Http,
    Ftp,
    Quic,
    Bulk,
    Ping,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EventFile {
    pub(super) at: Spanned<f64>,
    pub(super) quick: Option<Spanned<f64>>,
    /// Path number, from 1.
    pub(super) path: Spanned<usize>,
    #[serde(rename = "do")]
    pub(super) action: Action,
}

/// One value per case in order, or some values by case name.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Published {
    All(Vec<f64>),
    Some(BTreeMap<String, f64>),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ClaimFile {
    pub(super) metric: Metric,
    pub(super) of: Reference,
    pub(super) at_least: Option<f64>,
    pub(super) at_most: Option<f64>,
    #[serde(default)]
    pub(super) cases: Vec<String>,
    #[serde(default)]
    pub(super) original: bool,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub(super) enum Value {
    Whole(i64),
    Number(f64),
    Text(String),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(number) => number.fmt(f),
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => text.fmt(f),
        }
    }
}

/// Parses the file; values are checked later.
pub(super) fn read(file: &Path, text: &str) -> Result<PlanFile, Problem> {
    toml::from_str(text).map_err(|error| PlanText { file, text }.syntax(&error))
}

fn once() -> Spanned<u32> {
    Spanned::new(0..0, 1)
}

fn yes() -> bool {
    true
}
