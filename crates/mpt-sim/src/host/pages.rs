//! Page loads: a client requests objects, and a server sends each on a TCP connection of its own.
//!
//! A request is one packet, repeated after [`REQUEST_TIMEOUT`] if no data arrives. Connections start established, so a
//! load has no handshakes; each object costs a round trip and the slow start of its connection. Objects are rounded up
//! to full segments.

use super::{
    Host,
    merged::destination_port,
    tcp::{TcpSink, TcpSource, request, sink_port, source_port},
};
use mpt_proto::time::Time;
use std::time::Duration;

/// Initial retransmission timeout (RFC 6298 section 2).
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// Sends each object once it is requested.
#[derive(Debug)]
pub struct PageServer {
    mtu: usize,
    /// Bytes of each object.
    objects: Vec<u64>,
    connections: Vec<Option<TcpSource>>,
    next: usize,
}

impl PageServer {
    /// Creates a server of objects with these sizes in bytes.
    pub fn new(mtu: usize, objects: &[u64]) -> Self {
        let connections = objects.iter().map(|_| None).collect();
        Self { mtu, objects: objects.to_vec(), connections, next: 0 }
    }
}

impl Host for PageServer {
    fn handle(&mut self, now: Time, packet: &[u8]) {
        let port = destination_port(packet);
        let Some(object) = (0..self.objects.len()).find(|object| port == Some(source_port(*object as u16))) else {
            return;
        };
        let (mtu, bytes) = (self.mtu, self.objects[object]);
        let new = || TcpSource::new(mtu).flow(object as u16).limited(bytes).starting_at(now);
        self.connections[object].get_or_insert_with(new).handle(now, packet);
    }

    fn poll(&mut self, now: Time) -> Option<Vec<u8>> {
        let count = self.connections.len();
        let (number, packet) = (0..count).find_map(|turn| {
            let number = (self.next + turn) % count;
            Some((number, self.connections[number].as_mut()?.poll(now)?))
        })?;
        self.next = number + 1;
        Some(packet)
    }

    fn next_deadline(&self) -> Option<Time> {
        self.connections.iter().flatten().filter_map(Host::next_deadline).min()
    }

    fn tun_limit(&self) -> usize {
        self.connections.iter().flatten().map(Host::tun_limit).min().unwrap_or(usize::MAX)
    }
}

/// Requests the objects of a page, several at once.
#[derive(Debug)]
pub struct PageClient {
    mtu: usize,
    start: Time,
    at_once: usize,
    objects: Vec<Object>,
    /// Time at which the last object was complete.
    finished: Option<Time>,
}

#[derive(Debug)]
struct Object {
    bytes: u64,
    sink: TcpSink,
    /// Time of the next request; none before the first, and none once data arrived.
    request: Option<Time>,
    state: ObjectState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ObjectState {
    Waiting,
    Loading,
    Complete,
}

impl PageClient {
    /// Creates a client that loads objects of these sizes in bytes from `start` on, `at_once` at the same time.
    pub fn new(mtu: usize, objects: &[u64], at_once: usize, start: Time) -> Self {
        let object = |(flow, bytes): (usize, &u64)| Object {
            bytes: *bytes,
            sink: TcpSink::new(mtu).flow(flow as u16),
            request: None,
            state: ObjectState::Waiting,
        };
        let objects = objects.iter().enumerate().map(object).collect();
        let mut client = Self { mtu, start, at_once, objects, finished: None };
        client.start_loads(start);
        client
    }

    /// Returns the time from the start to the last byte of the last object; none until then.
    pub fn load_time(&self) -> Option<Duration> {
        self.finished.map(|at| at.since(self.start))
    }

    fn start_loads(&mut self, now: Time) {
        let loading = self.objects.iter().filter(|object| object.state == ObjectState::Loading).count();
        let waiting = self.objects.iter_mut().filter(|object| object.state == ObjectState::Waiting);
        for object in waiting.take(self.at_once.saturating_sub(loading)) {
            (object.state, object.request) = (ObjectState::Loading, Some(now));
        }
    }
}

impl Host for PageClient {
    fn handle(&mut self, now: Time, packet: &[u8]) {
        let port = destination_port(packet);
        let Some(number) = (0..self.objects.len()).find(|number| port == Some(sink_port(*number as u16))) else {
            return;
        };
        let object = &mut self.objects[number];
        object.request = None;
        object.sink.handle(now, packet);
        if object.state == ObjectState::Loading && object.sink.bytes() >= object.bytes {
            object.state = ObjectState::Complete;
            self.start_loads(now);
            if self.objects.iter().all(|object| object.state == ObjectState::Complete) {
                self.finished = Some(now);
            }
        }
    }

    fn poll(&mut self, now: Time) -> Option<Vec<u8>> {
        for (flow, object) in self.objects.iter_mut().enumerate() {
            if object.request.is_some_and(|at| at <= now) {
                object.request = Some(now + REQUEST_TIMEOUT);
                return Some(request(flow as u16, self.mtu, now));
            }
            if let Some(packet) = object.sink.poll(now) {
                return Some(packet);
            }
        }
        None
    }

    fn next_deadline(&self) -> Option<Time> {
        self.objects.iter().flat_map(|object| [object.request, object.sink.next_deadline()]).flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Exchanges packets without loss; each direction takes 10 ms, and the rate is unlimited.
    fn load(objects: &[u64], at_once: usize) -> Option<Duration> {
        let (mut server, mut client) =
            (PageServer::new(1_400, objects), PageClient::new(1_400, objects, at_once, Time::START));
        let mut now = Time::START;
        for _ in 0..200 {
            let requests: Vec<_> = std::iter::from_fn(|| client.poll(now)).collect();
            now += Duration::from_millis(10);
            requests.iter().for_each(|packet| server.handle(now, packet));
            let data: Vec<_> = std::iter::from_fn(|| server.poll(now)).collect();
            now += Duration::from_millis(10);
            data.iter().for_each(|packet| client.handle(now, packet));
        }
        client.load_time()
    }

    #[test]
    fn small_objects_take_a_round_trip_each_or_one_together() {
        // Ten segments of 1,348 bytes fit in the initial window.
        assert_eq!(load(&[13_000; 4], 1), Some(Duration::from_millis(4 * 20)));
        assert_eq!(load(&[13_000; 4], 2), Some(Duration::from_millis(2 * 20)));
        assert_eq!(load(&[13_000; 4], 6), Some(Duration::from_millis(20)));
    }
}
