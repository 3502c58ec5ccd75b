//! Several hosts behind one TUN device.

use super::Host;
use mpt_proto::time::Time;
use std::any::Any;

/// Hosts that differ in their port. They send in turn.
pub struct Merged {
    hosts: Vec<(u16, Box<dyn Host>)>,
    next: usize,
}

impl Merged {
    /// Merges hosts; each receives the packets to its port.
    pub fn new(hosts: Vec<(u16, Box<dyn Host>)>) -> Self {
        Self { hosts, next: 0 }
    }

    /// Returns the host with this number, which must be of type `H`.
    pub fn part<H: Host>(&self, number: usize) -> &H {
        let host: &dyn Any = &*self.hosts[number].1;
        host.downcast_ref().expect("the host that was put there")
    }
}

/// Returns the destination port of a TCP or UDP packet over IPv4 without options.
pub(super) fn destination_port(packet: &[u8]) -> Option<u16> {
    packet.get(22..24).and_then(|bytes| bytes.try_into().ok()).map(u16::from_be_bytes)
}

impl Host for Merged {
    fn handle(&mut self, now: Time, packet: &[u8]) {
        let port = destination_port(packet);
        if let Some((_, host)) = self.hosts.iter_mut().find(|(own, _)| Some(*own) == port) {
            host.handle(now, packet);
        }
    }

    fn poll(&mut self, now: Time) -> Option<Vec<u8>> {
        let count = self.hosts.len();
        let (number, packet) = (0..count).find_map(|turn| {
            let number = (self.next + turn) % count;
            Some((number, self.hosts[number].1.poll(now)?))
        })?;
        self.next = number + 1;
        Some(packet)
    }

    fn next_deadline(&self) -> Option<Time> {
        self.hosts.iter().filter_map(|(_, host)| host.next_deadline()).min()
    }

    /// The least of the hosts' limits, so that a greedy host does not fill the TUN device beside one without a limit.
    fn tun_limit(&self) -> usize {
        self.hosts.iter().map(|(_, host)| host.tun_limit()).min().unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::tcp::{TcpSink, TcpSource, sink_port, source_port};

    #[test]
    fn merged_hosts_send_in_turn_and_receive_by_port() {
        let source = |flow| -> (u16, Box<dyn Host>) {
            (source_port(flow), Box::new(TcpSource::new(1_400).flow(flow).limited(2_000)))
        };
        let sink = |flow| -> (u16, Box<dyn Host>) { (sink_port(flow), Box::new(TcpSink::new(1_400).flow(flow))) };
        let mut sources = Merged::new(vec![source(0), source(1)]);
        let mut sinks = Merged::new(vec![sink(0), sink(1)]);
        let packets: Vec<_> = std::iter::from_fn(|| sources.poll(Time::START)).collect();
        let ports: Vec<_> = packets.iter().filter_map(|packet| destination_port(packet)).collect();
        assert_eq!(ports, [5_201, 5_203].repeat(3), "a SYN, and two segments for 2,000 bytes");
        packets.iter().for_each(|packet| sinks.handle(Time::START, packet));
        assert_eq!([0, 1].map(|number| sinks.part::<TcpSink>(number).bytes()), [2 * 1_348; 2]);
        for _ in 0..4 {
            let answer = sinks.poll(Time::START).expect("SYNs are answered and two segments acknowledged at once");
            sources.handle(Time::START, &answer);
        }
        assert_eq!(sources.next_deadline(), None, "all data is acknowledged");
    }
}
