//! `mpt watch`: events of a tunnel, one a line; as JSON with samples.

use std::io::{self, ErrorKind, Write as _};

use super::arguments::WatchArgs;
use crate::Failure;
use crate::control::watch::{Watch, WatchItem};
use crate::control::{Event, EventKind, RunDir};

/// Prints items until the tunnel ends or stdout is closed.
pub fn run(arguments: &WatchArgs) -> Result<(), Failure> {
    let name = arguments.tunnel.name.as_deref();
    let mut watch = Watch::start(&RunDir::from_env(), name, arguments.interval)?;
    let mut is_stopping = false;
    loop {
        let item = match watch.next_item() {
            Err(_) if is_stopping => return Ok(()),
            next => next?,
        };
        is_stopping |= matches!(&item, WatchItem::Event(Event { kind: EventKind::Stopping {}, .. }));
        let json = || serde_json::to_string(&item).expect("names and numbers can be written as JSON");
        let Some(line) = (if arguments.json { Some(json()) } else { text(&item) }) else { continue };
        match writeln!(io::stdout(), "{line}") {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            Err(error) => return Err(Failure::new(format!("cannot print: {error}"))),
        }
    }
}

fn text(item: &WatchItem) -> Option<String> {
    let Event { time_ms, kind } = match item {
        WatchItem::Event(event) => event,
        WatchItem::Lost { events } => return Some(format!("{events} events were not read in time and are lost")),
        WatchItem::Sample(_) => return None,
    };
    let what = match kind {
        EventKind::Path { peer, path, from, to } => format!("{peer}/{path}: {from} -> {to}"),
        EventKind::Server { peer, to } => format!("{peer}: {to}"),
        EventKind::LimitWarning { peer, path } => format!("{peer}/{path}: 80 % of the limit of the month are used up"),
        EventKind::Limit { peer, path } => format!("{peer}/{path}: the limit of the month is used up"),
        EventKind::Mtu { mtu_bytes } => format!("the tunnel's MTU is {mtu_bytes}"),
        EventKind::Reloaded {} => "the configuration was read again".to_owned(),
        EventKind::Stopping {} => "the tunnel ends".to_owned(),
        EventKind::Other => return None,
    };
    let second = time_ms / 1_000;
    Some(format!("{:02}:{:02}:{:02}Z  {what}", second / 3_600 % 24, second / 60 % 60, second % 60))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_a_line_with_its_time() {
        let kind = EventKind::Path {
            peer: "office".to_owned(),
            path: "eth2".to_owned(),
            from: "up".to_owned(),
            to: "silent".to_owned(),
        };
        // `date -u -d @1764081791`
        let event = Event { time_ms: 1_764_081_791_500, kind };
        assert_eq!(text(&WatchItem::Event(event)).unwrap(), "14:43:11Z  office/eth2: up -> silent");
        assert_eq!(text(&WatchItem::Lost { events: 3 }).unwrap(), "3 events were not read in time and are lost");
    }
}
