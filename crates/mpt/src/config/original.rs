//! Tables for the protocol of the original MPT: the control port, and the identifiers of connections and paths.
//!
//! Everything without real authentication is rejected by default: see [`mpt_proto::legacy::control::Accept`].

use std::path::Path;
use std::time::Duration;

use mpt_proto::config::{KeepaliveConfig, LivenessConfig};
use mpt_proto::legacy::wire::AuthType;

use super::model::{Original, OriginalPath, OriginalPeer};
use super::reader::Reader;
use super::value_types::as_u32;
use super::values::At;
use super::{defaults, value_types};
use crate::legacy::import;
use crate::legacy::model::{ConnectionConfig, Secret};

/// Reads `[original]`, if present.
pub fn control(top: &mut Reader<'_, '_, '_>, native: bool) -> Option<Original> {
    let there = top.has("original");
    refuse(top, native);
    let read = top.table("original", "original", |table| Original {
        control_port: table.read_or("control_port", &value_types::port(), defaults::CONTROL_PORT).value,
        unauthenticated: table.read_or("unauthenticated", &value_types::boolean(), defaults::UNAUTHENTICATED).value,
        public_key: table.read_or("public_key", &value_types::boolean(), defaults::PUBLIC_KEY).value,
        template: template(table),
    });
    read.filter(|_| there)
}

/// Reads the template, a file in the format of the original because peers send their descriptions in it too. Its path
/// is relative to the configuration file.
fn template(table: &mut Reader<'_, '_, '_>) -> Option<ConnectionConfig> {
    let file = table.read("template", &value_types::file("conf.template"))?;
    let path = table.log.path().parent().unwrap_or(Path::new("")).join(&file.value);
    let read = import::template(table.log.files(), &path);
    read.map_err(|problem| {
        table.log.error(file.line, format!("template: {}", problem.location_and_cause()), Some(problem.hint))
    })
    .ok()
}

/// Reads `[peer.original]`, if present.
pub fn peer(table: &mut Reader<'_, '_, '_>, name: &At<String>, native: bool) -> Option<OriginalPeer> {
    let there = table.has("original");
    refuse(table, native);
    let read = table.table("original", "peer.original", |table| {
        let auths = [("sha256", AuthType::Sha256), ("nonce", AuthType::Nonce), ("none", AuthType::None)];
        let (local, remote) = match there {
            true => (table.require("local", &host("10.77.0.1")), table.require("remote", &host("10.77.0.2"))),
            false => (table.read("local", &host("10.77.0.1")), table.read("remote", &host("10.77.0.2"))),
        };
        let control_port = table.read_or("control_port", &value_types::port(), defaults::CONTROL_PORT).value;
        let auth = table.read_or("auth", &value_types::choice(&auths), AuthType::Sha256).value;
        let key = table.read(
            "key",
            &value_types::secret("mpt import copies it; generate one for both ends: openssl rand -hex 16"),
        );
        if let Some(line) = table.line_of_key("key") {
            table.log.secret(line, "key");
        }
        let keepalive_revives =
            table.read_or("keepalive_revives", &value_types::boolean(), defaults::KEEPALIVE_REVIVES).value;
        let file =
            table.read_or("file", &value_types::text("the name of a file", "c.conf"), format!("{name}.conf")).value;
        let key = key.map(|key| Secret(key.value));
        Some(OriginalPeer {
            local: local?.value,
            remote: remote?.value,
            control_port,
            auth,
            key,
            keepalive_revives,
            file,
            created: false,
        })
    });
    read.flatten().filter(|_| there)
}

fn host(example: &str) -> value_types::ValueType<std::net::IpAddr> {
    value_types::host(example)
}

/// Reads `[peer.path.original]`, or its defaults: path parameters, liveness detection, and the initial state.
pub fn path(
    table: &mut Reader<'_, '_, '_>,
    peer: Option<&OriginalPeer>,
) -> (OriginalPath, Option<LivenessConfig>, bool) {
    if peer.is_none() {
        table.refuse("original", "for a peer without [peer.original]", "add [peer.original], or leave it out");
    }
    let share = value_types::integer("a share", 1..=10_000, 10);
    let read = table.table("original", "peer.path.original", |table| {
        let path = OriginalPath {
            public: table.read("public", &value_types::host("203.0.113.7")).map(|public| public.value),
            weight_in: as_u32(table.read_or("weight_in", &share, u64::from(defaults::WEIGHT)).value),
            create: table.read_or("create", &value_types::boolean(), false).value,
        };
        let every = table.read_or("keepalive", &seconds(DAY).or_off(), None).value;
        let dead = table.read_or("dead", &seconds(3 * DAY).or_off(), None).value;
        let starts = value_types::choice(&[("up", true), ("down", false)]);
        let announces = |peer: &OriginalPeer| {
            let OriginalPeer { local, remote, keepalive_revives: revives, .. } = *peer;
            KeepaliveConfig { every, dead, local, remote, revives }
        };
        let liveness = peer.map(|peer| LivenessConfig::Keepalives(announces(peer)));
        (path, liveness, table.read_or("start", &starts, true).value)
    });
    read.unwrap_or((OriginalPath::default(), None, true))
}

/// The original counts in seconds.
fn seconds(longest: Duration) -> value_types::ValueType<Duration> {
    value_types::duration(Duration::from_secs(1)..=longest, "5s")
}

fn refuse(table: &mut Reader<'_, '_, '_>, native: bool) {
    if native {
        table.refuse(
            "original",
            "in native mode",
            "mode = \"plain\" at the top of the file: the original has no other mode",
        );
    }
}

/// An arbitrary maximum; the original has none.
const DAY: Duration = Duration::from_secs(86_400);
