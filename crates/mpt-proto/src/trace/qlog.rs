//! The event trace as qlog: JSON text sequences (RFC 7464) per draft-ietf-quic-qlog-main-schema, with the event names
//! of draft-ietf-quic-qlog-quic-events where they exist. `docs/guide/qlog.md` lists all events and fields.
//!
//! ```text
//! write_header -> 0x1E {"file_schema":..,"trace":{..}} LF
//! write_event --> 0x1E {"time":..,"name":"quic:packet_lost","data":{..}} LF       (for each record)
//! ```
//!
//! The functions append to a string; the owner of the endpoint writes it to a file. Times are milliseconds since
//! [`Time::START`].

use std::fmt::{self, Write as _};
use std::time::Duration;

use super::{
    Content, GiveUpCause, HandshakeEvent, LossCause, PathMetrics, SchedulerChoice, SchedulerDecision, TraceEvent,
    TraceRecord,
};
use crate::classify::Class;
use crate::id::{MAX_PATHS, PathId, PathSet};
use crate::path::PathState;
use crate::repair::FlowSeq;
use crate::time::Time;

/// The description of one trace: what one end recorded about one peer.
#[derive(Clone, Copy, Debug)]
pub struct QlogHeader<'a> {
    /// The title of the file.
    pub title: &'a str,
    /// The name of this end.
    pub vantage_point: &'a str,
    /// The time since the Unix epoch at [`Time::START`], if this end has a clock.
    pub wall_clock: Option<Duration>,
}

/// Appends the header, which must be the first text of a file.
pub fn write_header(out: &mut String, header: &QlogHeader<'_>) {
    write_text(out, |json| {
        json.string("file_schema", "urn:ietf:params:qlog:file:sequential");
        json.string("serialization_format", "application/qlog+json-seq");
        json.string("title", header.title);
        json.object("trace", |json| {
            json.string("title", header.title);
            json.object("vantage_point", |json| {
                json.string("name", header.vantage_point);
                // The draft has "client", "server", "network" and "unknown"; the ends of a tunnel are equal.
                json.string("type", "unknown");
            });
            json.strings("event_schemas", EVENT_SCHEMAS);
            json.object("common_fields", |json| {
                json.string("time_format", "relative_to_epoch");
                json.object("reference_time", |json| {
                    json.string("clock_type", "monotonic");
                    json.string("epoch", "unknown");
                    if let Some(since_epoch) = header.wall_clock {
                        json.string("wall_clock_time", &rfc3339(since_epoch));
                    }
                });
            });
        });
    });
}

/// Appends an event.
pub fn write_event(out: &mut String, record: &TraceRecord) {
    write_text(out, |json| {
        json.milliseconds("time", record.time - Time::START);
        json.string("name", name(&record.event));
        json.object("data", |json| write_data(json, &record.event));
    });
}

/// Returns the name of an event with its namespace.
pub fn name(event: &TraceEvent) -> &'static str {
    match event {
        TraceEvent::PathAdded { .. } => "mpt:path_added",
        TraceEvent::PathRemoved { .. } => "mpt:path_removed",
        TraceEvent::PathStateUpdated { .. } => "mpt:path_state_updated",
        TraceEvent::MetricsUpdated { .. } => "quic:recovery_metrics_updated",
        TraceEvent::Scheduled(_) => "mpt:packets_scheduled",
        TraceEvent::PacketLost { .. } => "quic:packet_lost",
        TraceEvent::SpuriousLoss { .. } => "mpt:spurious_loss",
        TraceEvent::Retransmitted { .. } => "mpt:packet_retransmitted",
        TraceEvent::Duplicated { .. } => "mpt:packet_duplicated",
        TraceEvent::GivenUp { .. } => "mpt:packet_given_up",
        TraceEvent::RepairSent { .. } => "mpt:repair_sent",
        TraceEvent::Recovered { .. } => "mpt:packet_recovered",
        TraceEvent::HoldBegan { .. } => "mpt:hold_began",
        TraceEvent::HoldEnded { .. } => "mpt:hold_ended",
        TraceEvent::HoleGivenUp { .. } => "mpt:hole_given_up",
        TraceEvent::Handshake(_) => "mpt:handshake",
        TraceEvent::Overflow { .. } => "mpt:trace_overflow",
    }
}

fn write_data(json: &mut Object<'_>, event: &TraceEvent) {
    match event {
        TraceEvent::PathAdded { path, name, link, remote, state } => {
            json.path(*path);
            json.string("path_name", name);
            json.number("link", link.0);
            json.display("remote", remote);
            json.string("state", state_name(*state));
        }
        TraceEvent::PathRemoved { path } => json.path(*path),
        TraceEvent::PathStateUpdated { path, from, to } => {
            json.path(*path);
            json.string("old", state_name(*from));
            json.string("new", state_name(*to));
        }
        TraceEvent::MetricsUpdated { path, metrics } => {
            json.path(*path);
            write_metrics(json, metrics);
        }
        TraceEvent::Scheduled(decision) => write_decision(json, decision),
        TraceEvent::PacketLost { path, content, cause } => {
            json.path(*path);
            write_content(json, *content);
            match cause {
                LossCause::Overtaken => json.string("trigger", "time_threshold"),
                LossCause::PathFailed => json.boolean("path_failed", true),
            }
        }
        TraceEvent::SpuriousLoss { path, content } => {
            json.path(*path);
            write_content(json, *content);
        }
        TraceEvent::Retransmitted { path, seq, losses } => {
            json.path(*path);
            json.seq(*seq);
            json.number("losses", *losses);
        }
        TraceEvent::Duplicated { path, seq } => {
            json.path(*path);
            json.seq(*seq);
        }
        TraceEvent::GivenUp { seq, cause } => {
            json.seq(*seq);
            json.string(
                "cause",
                match cause {
                    GiveUpCause::Late => "late",
                    GiveUpCause::TooBig => "too_big",
                },
            );
        }
        TraceEvent::RepairSent { path, span, bytes } => {
            json.path(*path);
            json.number("span", *span);
            json.number("bytes", *bytes);
        }
        TraceEvent::Recovered { seq } => json.seq(*seq),
        TraceEvent::HoldBegan { bucket, missing } => {
            json.number("bucket", *bucket);
            json.number("missing", *missing);
        }
        TraceEvent::HoldEnded { bucket, held_for } => {
            json.number("bucket", *bucket);
            json.milliseconds("held_for", *held_for);
        }
        TraceEvent::HoleGivenUp { bucket, skipped, expired, overrun } => {
            json.number("bucket", *bucket);
            json.number("skipped", *skipped);
            json.number("expired", *expired);
            json.number("overrun", *overrun);
        }
        TraceEvent::Handshake(event) => json.string(
            "state",
            match event {
                HandshakeEvent::Initiated => "initiated",
                HandshakeEvent::RekeySent => "rekey_sent",
                HandshakeEvent::Established => "established",
                HandshakeEvent::GaveUp => "gave_up",
                HandshakeEvent::PeerRestarted => "peer_restarted",
                HandshakeEvent::SessionsDropped => "sessions_dropped",
            },
        ),
        TraceEvent::Overflow { events } => json.number("events", *events),
    }
}

fn write_metrics(json: &mut Object<'_>, metrics: &PathMetrics) {
    json.milliseconds("min_rtt", metrics.min_rtt);
    json.milliseconds("smoothed_rtt", metrics.smoothed_rtt);
    json.milliseconds("latest_rtt", metrics.latest_rtt);
    json.milliseconds("rtt_variance", metrics.rtt_variance);
    json.number("congestion_window", metrics.congestion_window);
    json.number("bytes_in_flight", metrics.bytes_in_flight);
    json.number("pacing_rate", metrics.pacing_rate.bits());
    if let Some(rate) = metrics.bottleneck_rate {
        json.number("bottleneck_rate", rate.bits());
    }
    json.milliseconds("queue", metrics.queue);
    json.fraction("loss", metrics.loss);
}

fn write_decision(json: &mut Object<'_>, decision: &SchedulerDecision) {
    match decision.choice {
        SchedulerChoice::Send(path) => {
            json.string("decision", "send");
            json.path(path);
        }
        SchedulerChoice::Ahead(path) => {
            json.string("decision", "send_ahead");
            json.path(path);
        }
        SchedulerChoice::Wait => json.string("decision", "wait"),
    }
    json.string("class", class_name(decision.class));
    json.number("bucket", decision.bucket);
    json.boolean("retransmission", decision.retransmission);
    json.slots("candidates", decision.candidates);
    json.number("bytes", decision.bytes);
}

fn write_content(json: &mut Object<'_>, content: Content) {
    match content {
        Content::Control => json.string("content", "control"),
        Content::MtuProbe(size) => {
            json.string("content", "mtu_probe");
            json.boolean("is_mtu_probe_packet", true);
            json.number("bytes", size);
        }
        Content::Packet { seq, copies } => {
            json.string("content", "packet");
            seq.into_iter().for_each(|seq| json.seq(seq));
            json.number("copies_in_flight", copies);
        }
    }
}

fn class_name(class: Class) -> &'static str {
    let named = Class::NAMES.iter().find(|(_, known)| *known == class);
    named.map(|(name, _)| *name).expect("every class has a name")
}

fn state_name(state: PathState) -> &'static str {
    use crate::path::{Demotion, DownCause};
    match state {
        PathState::Up => "up",
        PathState::Down(DownCause::Operator) => "down_operator",
        PathState::Down(DownCause::Carrier) => "down_carrier",
        PathState::Down(DownCause::Peer) => "down_peer",
        PathState::Down(DownCause::Silent) => "down_silent",
        PathState::Demoted(Demotion::Flapping) => "demoted_flapping",
        PathState::Demoted(Demotion::Lossy) => "demoted_lossy",
        PathState::Demoted(Demotion::Narrow) => "demoted_narrow",
        PathState::Demoted(Demotion::Unproven) => "demoted_unproven",
    }
}

/// The event schemas that the names refer to. The URI of the QUIC schema contains the number of its Internet-Draft
/// until the draft is an RFC.
const EVENT_SCHEMAS: &[&str] = &["urn:ietf:params:qlog:events:quic-13", "urn:mpt:qlog:events:mpt"];

/// Starts a JSON text (RFC 7464 section 2.2).
const RECORD_SEPARATOR: char = '\u{1e}';

fn write_text(out: &mut String, members: impl FnOnce(&mut Object<'_>)) {
    out.push(RECORD_SEPARATOR);
    write_object(out, members);
    out.push('\n');
}

fn write_object(out: &mut String, members: impl FnOnce(&mut Object<'_>)) {
    out.push('{');
    members(&mut Object { out, empty: true });
    out.push('}');
}

/// A JSON object under construction. Names are constants of this file and need no escapes.
struct Object<'a> {
    out: &'a mut String,
    empty: bool,
}

impl Object<'_> {
    fn name(&mut self, name: &str) {
        let comma = if self.empty { "" } else { "," };
        self.empty = false;
        append(self.out, format_args!("{comma}\"{name}\":"));
    }

    fn string(&mut self, name: &str, value: &str) {
        self.name(name);
        write_string(self.out, value);
    }

    /// Writes a value whose text needs no escapes.
    fn display(&mut self, name: &str, value: impl fmt::Display) {
        self.name(name);
        append(self.out, format_args!("\"{value}\""));
    }

    fn strings(&mut self, name: &str, values: &[&str]) {
        self.name(name);
        self.array(values.iter(), |out, value| write_string(out, value));
    }

    /// Writes an integer. Above 2^53 it is cut off there: JSON readers use doubles.
    fn number(&mut self, name: &str, value: impl Into<u64>) {
        self.name(name);
        append(self.out, format_args!("{}", value.into().min(MAX_INTEGER)));
    }

    fn boolean(&mut self, name: &str, value: bool) {
        self.name(name);
        append(self.out, format_args!("{value}"));
    }

    /// Writes a time in milliseconds, with nanoseconds as the fraction.
    fn milliseconds(&mut self, name: &str, time: Duration) {
        self.name(name);
        append(self.out, format_args!("{}.{:06}", time.as_millis(), time.subsec_nanos() % 1_000_000));
    }

    /// Writes a fraction from 0 to 1.
    fn fraction(&mut self, name: &str, value: f64) {
        self.name(name);
        let value = if value.is_finite() { value } else { 0.0 };
        append(self.out, format_args!("{value:.6}"));
    }

    fn object(&mut self, name: &str, members: impl FnOnce(&mut Object<'_>)) {
        self.name(name);
        write_object(self.out, members);
    }

    /// Writes a path: its slot and its generation.
    fn path(&mut self, path: PathId) {
        self.display("path", path);
    }

    fn seq(&mut self, seq: FlowSeq) {
        self.number("bucket", seq.bucket);
        self.number("sequence", seq.sequence);
    }

    /// Writes the slots of a set.
    fn slots(&mut self, name: &str, set: PathSet) {
        let slots = (0..MAX_PATHS as u8).filter(|slot| set.contains(PathId { slot: *slot, generation: 0 }));
        self.name(name);
        self.array(slots, |out, slot| append(out, format_args!("{slot}")));
    }

    fn array<T>(&mut self, values: impl Iterator<Item = T>, write: impl Fn(&mut String, T)) {
        self.out.push('[');
        for (index, value) in values.enumerate() {
            if index > 0 {
                self.out.push(',');
            }
            write(self.out, value);
        }
        self.out.push(']');
    }
}

/// Writes a string with the escapes of RFC 8259 section 7.
fn write_string(out: &mut String, value: &str) {
    out.push('"');
    for c in value.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if c < ' ' => append(out, format_args!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
}

fn append(out: &mut String, text: fmt::Arguments<'_>) {
    out.write_fmt(text).expect("a string takes all text");
}

/// Returns the date and time in UTC, as in RFC 3339. The date follows from the days since the epoch by Howard Hinnant's
/// `civil_from_days` (<https://howardhinnant.github.io/date_algorithms.html>).
fn rfc3339(since_epoch: Duration) -> String {
    let (days, second) = (since_epoch.as_secs() / 86_400, since_epoch.as_secs() % 86_400);
    // Days since 0000-03-01, so that a leap day is the last day of a year.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (year, month) = (era * 400 + year_of_era + month / 10, (month + 2) % 12 + 1);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", since_epoch.subsec_millis())
}

/// The largest integer that every JSON reader keeps exact: 2^53 - 1 (RFC 8259 section 6).
const MAX_INTEGER: u64 = (1 << 53) - 1;

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: PathId = PathId { slot: 1, generation: 2 };

    fn line(event: TraceEvent) -> String {
        let mut out = String::new();
        write_event(&mut out, &TraceRecord { peer: 0, time: Time::after(Duration::from_micros(1_500)), event });
        out
    }

    #[test]
    fn an_event_is_one_json_text_between_separator_and_line_feed() {
        let lost = TraceEvent::PacketLost {
            path: PATH,
            content: Content::Packet { seq: Some(FlowSeq { bucket: 7, sequence: 9 }), copies: 0 },
            cause: LossCause::Overtaken,
        };
        assert_eq!(
            line(lost),
            "\u{1e}{\"time\":1.500000,\"name\":\"quic:packet_lost\",\"data\":{\"path\":\"1.2\",\"content\":\"packet\",\
             \"bucket\":7,\"sequence\":9,\"copies_in_flight\":0,\"trigger\":\"time_threshold\"}}\n"
        );
    }

    #[test]
    fn a_set_of_paths_is_an_array_of_slots() {
        let decision = SchedulerDecision {
            class: Class::Interactive,
            bucket: 3,
            retransmission: true,
            candidates: [0, 2].map(|slot| PathId { slot, generation: 5 }).into_iter().collect(),
            choice: SchedulerChoice::Wait,
            bytes: 0,
        };
        let line = line(TraceEvent::Scheduled(decision));
        assert!(line.contains("\"candidates\":[0,2]") && line.contains("\"class\":\"interactive\""), "{line}");
    }

    #[test]
    fn strings_are_escaped_and_numbers_stay_exact() {
        let mut out = String::new();
        write_string(&mut out, "a\"b\\c\n\u{1}é");
        assert_eq!(out, "\"a\\\"b\\\\c\\u000a\\u0001é\"");
        out.clear();
        write_object(&mut out, |json| {
            json.number("a", u64::MAX);
            json.fraction("b", f64::NAN);
            json.milliseconds("c", Duration::from_nanos(61_000_000_007));
        });
        assert_eq!(out, "{\"a\":9007199254740991,\"b\":0.000000,\"c\":61000.000007}");
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(rfc3339(Duration::ZERO), "1970-01-01T00:00:00.000Z");
        // 2000-02-29 is the leap day of a leap century: 11,016 days after the epoch.
        assert_eq!(rfc3339(Duration::from_secs(11_016 * 86_400 + 86_399)), "2000-02-29T23:59:59.000Z");
        assert_eq!(rfc3339(Duration::from_secs(11_017 * 86_400)), "2000-03-01T00:00:00.000Z");
        assert_eq!(rfc3339(Duration::from_millis(1_767_225_599_250)), "2025-12-31T23:59:59.250Z");
    }
}
