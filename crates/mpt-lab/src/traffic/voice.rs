//! A VoIP call: G.711 as a telephone sends it, with the one-way delay of every packet.
//!
//! 64 kbit/s in packets of 20 ms are 160 bytes of audio and 12 of RTP (RFC 3550, RFC 3551), 200 with UDP and IPv4
//! headers. Both ends are threads of this process, so send and receive timestamps come from the same clock.

use crate::{
    error::{Context, Result},
    topology::Netns,
};
use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    thread,
    time::{Duration, Instant},
};

/// A VoIP call in progress.
pub struct Call {
    sender: thread::JoinHandle<u64>,
    receiver: thread::JoinHandle<Vec<ReceivedPacket>>,
}

/// A received packet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReceivedPacket {
    /// Receive time since the start of the call.
    pub at: Duration,
    /// One-way delay.
    pub delay: Duration,
    /// Sequence number.
    pub number: u64,
}

/// Quality of a VoIP call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Quality {
    /// One-way delays in ms, in order of arrival.
    pub delays: Vec<f64>,
    /// Mean difference of the delays of consecutive packets, ms.
    pub jitter: f64,
    /// Share of lost packets, 0 to 1.
    pub lost: f64,
    /// Longest time without a packet, ms.
    pub gap: f64,
}

impl Call {
    /// Starts a call from `from` to `to` that lasts `time`.
    pub fn start(caller: &Netns, callee: &Netns, from: Option<IpAddr>, to: IpAddr, time: Duration) -> Result<Self> {
        let to = SocketAddr::new(to, PORT);
        let any: IpAddr = if to.is_ipv4() { [0, 0, 0, 0].into() } else { [0u16; 8].into() };
        let receiver_socket = callee.enter(|| UdpSocket::bind(to))?.context(format!("bind {to}"))?;
        let sender_socket = caller.enter(|| UdpSocket::bind((from.unwrap_or(any), 0)))?.context("bind the sender")?;
        receiver_socket.set_read_timeout(Some(RECEIVE_TIMEOUT)).context("set a time limit")?;
        let start = Instant::now();
        Ok(Self {
            sender: thread::spawn(move || send(&sender_socket, to, start, time)),
            receiver: thread::spawn(move || receive(&receiver_socket, start, time + RECEIVE_TIMEOUT)),
        })
    }

    /// Waits for the end of the call and for packets still in flight.
    pub fn finish(self) -> Quality {
        let sent = self.sender.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let packets = self.receiver.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        quality(sent, &packets)
    }
}

fn send(sender_socket: &UdpSocket, to: SocketAddr, start: Instant, time: Duration) -> u64 {
    let mut packet = [0; PAYLOAD];
    let count = (time.as_nanos() / INTERVAL.as_nanos()) as u64;
    for number in 0..count {
        thread::sleep((INTERVAL * number as u32).saturating_sub(start.elapsed()));
        packet[..8].copy_from_slice(&number.to_be_bytes());
        packet[8..16].copy_from_slice(&(start.elapsed().as_nanos() as u64).to_be_bytes());
        // A packet that cannot be sent counts as lost.
        let _ = sender_socket.send_to(&packet, to);
    }
    count
}

fn receive(receiver_socket: &UdpSocket, start: Instant, end: Duration) -> Vec<ReceivedPacket> {
    let (mut packets, mut packet) = (Vec::new(), [0; PAYLOAD]);
    while start.elapsed() < end {
        let Ok((PAYLOAD, _)) = receiver_socket.recv_from(&mut packet) else { continue };
        let at = start.elapsed();
        let field = |from: usize| u64::from_be_bytes(packet[from..from + 8].try_into().expect("eight bytes"));
        packets.push(ReceivedPacket { at, delay: at.saturating_sub(Duration::from_nanos(field(8))), number: field(0) });
    }
    packets
}

fn quality(sent: u64, packets: &[ReceivedPacket]) -> Quality {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let mut numbers: Vec<u64> = packets.iter().map(|packet| packet.number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let gaps = packets.windows(2).map(|pair| ms(pair[1].at - pair[0].at));
    let delays: Vec<f64> = packets.iter().map(|packet| ms(packet.delay)).collect();
    Quality {
        jitter: jitter(&delays),
        lost: 1.0 - numbers.len() as f64 / sent.max(1) as f64,
        gap: gaps.fold(0.0, f64::max),
        delays,
    }
}

/// Returns the mean difference of consecutive values.
pub fn jitter(delays: &[f64]) -> f64 {
    let steps: Vec<f64> = delays.windows(2).map(|pair| (pair[1] - pair[0]).abs()).collect();
    steps.iter().sum::<f64>() / steps.len().max(1) as f64
}

const INTERVAL: Duration = Duration::from_millis(20);

/// Audio and RTP header.
const PAYLOAD: usize = 160 + 12;

/// Maximum time in flight after the last packet was sent.
const RECEIVE_TIMEOUT: Duration = Duration::from_millis(500);

const PORT: u16 = 5004;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quality_of_a_call_is_its_delay_jitter_loss_and_gap() {
        let ms = Duration::from_millis;
        let packet = |number, at, delay| ReceivedPacket { at: ms(at), delay: ms(delay), number };
        let quality = quality(4, &[packet(0, 10, 10), packet(1, 35, 15), packet(3, 70, 10), packet(3, 71, 11)]);
        assert_eq!(quality.delays, [10.0, 15.0, 10.0, 11.0]);
        assert!((quality.jitter - 11.0 / 3.0).abs() < 1e-9 && quality.lost == 0.25 && quality.gap == 35.0);
    }
}
