//! Events and samples of a tunnel, over one connection to its status socket.
//!
//! The daemon sends events; a sample is a report that this end requests, with the rates since the last one. So the
//! daemon needs no timer, and an end that reads slowly gets fewer samples.

use std::io::{self, BufRead as _, ErrorKind, Read as _};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use super::client::{ControlClient, MAX_RESPONSE, PAGE, TIMEOUT, response};
use super::report::Report;
use super::{Event, Request, Response, RunDir};
use crate::Failure;

/// A connection that watches a tunnel.
#[derive(Debug)]
pub struct Watch {
    client: ControlClient,
    interval: Duration,
    /// A line that has not arrived completely.
    line: Vec<u8>,
    /// The pages of the next sample that have arrived, while others are missing.
    pages: Option<Report>,
    last: Option<Report>,
    /// Time of the next request while `pages` is `None`, and the deadline of the response otherwise.
    due: Instant,
}

/// An item that a watched tunnel yields; its JSON is a line of `mpt watch --json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WatchItem {
    /// Something happened.
    Event(Event),
    /// The state at present.
    Sample(Sample),
    /// Events were lost, because they were not read in time.
    Lost {
        /// Number of events.
        events: u64,
    },
}

/// A report with its time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sample {
    /// Milliseconds since 1970.
    pub time_ms: u64,
    /// The report, with the rates since the last sample.
    #[serde(flatten)]
    pub report: Report,
}

impl Watch {
    /// Watches the tunnel `name`, or the only running one, with a sample per interval; the first one comes at once.
    ///
    /// # Errors
    /// There is none or more than one, or this user has no access.
    pub fn start(directory: &RunDir, name: Option<&str>, interval: Duration) -> Result<Self, Failure> {
        let mut client = ControlClient::connect_status(directory, name)?;
        client.request(&Request::Watch {})?;
        Ok(Self { client, interval, line: Vec::new(), pages: None, last: None, due: Instant::now() })
    }

    /// Waits for the next item.
    ///
    /// # Errors
    /// The tunnel has ended, or does not respond.
    pub fn next_item(&mut self) -> Result<WatchItem, Failure> {
        loop {
            if self.pages.is_none() && self.due <= Instant::now() {
                self.request_page(Report::default())?;
                continue;
            }
            let Some(line) = self.read_line().map_err(|error| self.client.lost(&error))? else {
                if self.pages.is_some() && self.due <= Instant::now() {
                    return Err(self.client.lost(&ErrorKind::TimedOut.into()));
                }
                continue;
            };
            match response(&line) {
                Ok(Response::Event(event)) => return Ok(WatchItem::Event(event)),
                Ok(Response::Lost { events }) => return Ok(WatchItem::Lost { events }),
                Ok(Response::Status(page)) => {
                    if let Some(report) = self.on_page(page)? {
                        let time_ms =
                            SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
                        return Ok(WatchItem::Sample(Sample { time_ms, report }));
                    }
                }
                Ok(Response::Error { what, hint }) => return Err(Failure { what, hint }),
                Ok(Response::Done {} | Response::Tested(_)) => {}
                Err(error) => return Err(self.client.malformed(&error.to_string())),
            }
        }
    }

    /// Requests the peers that follow those of `pages`.
    fn request_page(&mut self, pages: Report) -> Result<(), Failure> {
        let request = Request::Status { first: pages.peers.len(), count: Some(PAGE) };
        self.client.send(&request).map_err(|error| self.client.lost(&error))?;
        self.due = Instant::now() + TIMEOUT;
        self.pages = Some(pages);
        Ok(())
    }

    /// Adds a page, and returns the sample when it was the last one.
    fn on_page(&mut self, page: Report) -> Result<Option<Report>, Failure> {
        let Some(mut pages) = self.pages.take() else { return Ok(None) };
        let is_last = page.peers.len() < PAGE;
        if pages.peers.is_empty() {
            pages = page;
        } else {
            self.client.extend(&mut pages, page)?;
        }
        if !is_last {
            self.request_page(pages)?;
            return Ok(None);
        }
        if let Some(last) = &self.last {
            pages.fill_rates(last);
        }
        self.last = Some(pages.clone());
        self.due = Instant::now() + self.interval;
        Ok(Some(pages))
    }

    /// Returns the next line, or `None` if there is none until the deadline.
    fn read_line(&mut self) -> io::Result<Option<Vec<u8>>> {
        // A timeout of zero would be none.
        let left = self.due.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let stream = self.client.stream();
        stream.get_ref().set_read_timeout(Some(left))?;
        let read = stream.by_ref().take(MAX_RESPONSE - self.line.len() as u64).read_until(b'\n', &mut self.line);
        match read {
            Ok(_) if self.line.last() == Some(&b'\n') => Ok(Some(std::mem::take(&mut self.line))),
            Ok(_) => Err(ErrorKind::UnexpectedEof.into()),
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}
