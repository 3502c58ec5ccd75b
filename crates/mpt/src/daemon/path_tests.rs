//! `mpt path test`: clients that wait for the result of a test. See `peer/native/path_test.rs` in the core.

use std::time::Duration;

use mpt_proto::PeerError;
use mpt_proto::stats::PathTestOutcome;
use mpt_proto::time::Time;

use super::Daemon;
use crate::Failure;
use crate::control::report::PathTestReport;
use crate::control::{ClientToken, Response};

/// A test whose result a client waits for.
#[derive(Debug)]
pub(super) struct PendingTest {
    client: ClientToken,
    peer: String,
    path: String,
}

impl Daemon {
    /// Begins a test of a path. The client gets the result later.
    ///
    /// # Errors
    /// There is no such path, it is down or of plain mode, or another path of the peer is being tested.
    pub(super) fn start_path_test(
        &mut self,
        now: Time,
        client: ClientToken,
        peer: &str,
        path: &str,
    ) -> Result<(), Failure> {
        self.workers.start_path_test(now, peer, path).map_err(|error| start_failure(error, peer, path))?;
        tracing::info!(peer, path, "the path is tested");
        self.path_tests.push(PendingTest { client, peer: peer.to_owned(), path: path.to_owned() });
        Ok(())
    }

    /// Ends the tests of the paths to a peer that is removed.
    pub(super) fn end_path_tests_of(&mut self, peer: &str) {
        for test in self.path_tests.extract_if(.., |test| test.peer == peer) {
            let gone = Failure::new(format!("the peer {peer} was removed or restarted during the test"));
            self.control.respond(test.client, &gone.into());
        }
    }

    /// Responds to the clients whose tests have ended.
    pub(super) fn poll_path_tests(&mut self, now: Time) -> Option<Time> {
        for test in std::mem::take(&mut self.path_tests) {
            let response = match self.workers.take_path_test(&test.peer) {
                Ok(None) => {
                    self.path_tests.push(test);
                    continue;
                }
                Ok(Some(outcome)) => response(&test, &outcome),
                Err(error) => Failure::new(format!("the test of {} ended: {error}", test.path)).into(),
            };
            self.control.respond(test.client, &response);
        }
        (!self.path_tests.is_empty()).then(|| now + POLL_INTERVAL)
    }
}

/// A test lasts ten seconds.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

fn response(test: &PendingTest, outcome: &PathTestOutcome) -> Response {
    let PendingTest { peer, path, .. } = test;
    let Some(sent) = outcome.sent else {
        return Failure::new(format!("the path {path} to {peer} went down during the test")).hint("mpt status").into();
    };
    let (sent, received) = (sent.into(), outcome.received.map(Into::into));
    Response::Tested(PathTestReport { peer: peer.clone(), path: path.clone(), sent, received })
}

fn start_failure(error: PeerError, peer: &str, path: &str) -> Failure {
    match error {
        PeerError::NotNative => Failure::new(format!("the path {path} to {peer} cannot be tested in plain mode"))
            .hint("it has no acknowledgements; iperf3 through the tunnel measures all paths together"),
        PeerError::PathDown => Failure::new(format!("the path {path} to {peer} is down")).hint("mpt status"),
        PeerError::Busy => Failure::new(format!("a path to {peer} is being tested")).hint("a test takes 10 s"),
        PeerError::NoSuchPeer | PeerError::NoSuchPath | PeerError::NoAddress | PeerError::NoSlot => {
            Failure::new(format!("there is no path {path} to the peer {peer}")).hint("mpt path list")
        }
    }
}
