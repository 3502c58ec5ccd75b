//! A sender that reacts to drops and marks, a link of 10 Mbit/s, and the queue between them, in virtual time.

use std::collections::VecDeque;

use super::*;

/// The link sends a packet of 1400 bytes in 1.12 ms.
const SERVICE: Duration = Duration::from_micros(1_120);
/// From the queue's exit to the sender and back to its entrance; 36 packets are in flight.
const RTT: Duration = Duration::from_millis(40);

/// Additive increase, multiplicative decrease, once per round trip: TCP Reno beyond slow start (RFC 5681).
struct Sender {
    window: f64,
    in_flight: usize,
    next_back_off: Time,
    /// Pending feedback: its time, and true if the packet arrived unmarked.
    feedback: VecDeque<(Time, bool)>,
}

impl Sender {
    fn new(window: f64) -> Self {
        Self { window, in_flight: 0, next_back_off: NOW, feedback: VecDeque::new() }
    }

    fn on_feedback(&mut self, now: Time) {
        while let Some((_, unmarked)) = self.feedback.front().copied().filter(|(at, _)| *at <= now) {
            self.feedback.pop_front();
            self.in_flight -= 1;
            if unmarked {
                self.window += 1.0 / self.window;
            } else if now >= self.next_back_off {
                self.window = (self.window / 2.0).max(2.0);
                self.next_back_off = now + RTT;
            }
        }
    }
}

/// The results of the second half of a run.
struct Outcome {
    /// Maximum over the intervals of the minimum delay in each: the standing queue.
    standing: Duration,
    /// Share of the time in which the link was busy.
    busy: f64,
}

/// Runs one sender for a minute.
fn run(aqm: Aqm, ect: u8) -> Outcome {
    let (mut queue, mut drops, mut sender) = (Queue::new(ROOMY, aqm), Drops::default(), Sender::new(250.0));
    let mut pushed_at = VecDeque::new();
    let mut delays = Vec::new();
    let slots = (Duration::from_secs(60).as_nanos() / SERVICE.as_nanos()) as u32;
    for slot in 0..slots {
        let now = NOW + SERVICE * slot;
        sender.on_feedback(now);
        while sender.in_flight < sender.window as usize {
            queue.push(now, 1, with_ecn(ect));
            pushed_at.push_back(now);
            sender.in_flight += 1;
        }
        let sent = next(&mut queue, now, &mut drops);
        let dropped = queue.take_dropped();
        pushed_at.drain(..dropped as usize);
        sender.feedback.extend((0..dropped).map(|_| (now + RTT, false)));
        if let Some((_, packet)) = &sent {
            delays.push((slot, now.since(pushed_at.pop_front().unwrap())));
            sender.feedback.push_back((now + RTT, packet.tos() & ecn::MASK != ecn::CE));
        }
    }
    let late: Vec<_> = delays.into_iter().filter(|(slot, _)| *slot >= slots / 2).collect();
    let per_interval = (INTERVAL.as_nanos() / SERVICE.as_nanos()) as usize;
    let shortest = late.chunks(per_interval).map(|chunk| chunk.iter().map(|(_, delay)| *delay).min().unwrap());
    Outcome { standing: shortest.max().unwrap(), busy: late.len() as f64 / f64::from(slots / 2) }
}

fn with_ecn(ect: u8) -> SuperPacket {
    let mut bytes = packet(Version::V4, TCP, PAYLOAD, 1);
    ip::set_tos(&mut bytes, Version::V4, ect);
    from(bytes, PAYLOAD)
}

#[test]
fn a_standing_queue_is_brought_to_target_and_the_link_stays_busy() {
    for ect in [ecn::NOT_ECT, ecn::ECT0] {
        let Outcome { standing, busy } = run(Aqm::default(), ect);
        // A drop takes effect a round trip after the interval in which the queue began to stand. Meanwhile the window
        // grows by a packet per round trip of about 55 ms: by three packets, 3.4 ms.
        assert!(standing <= TARGET + 4 * SERVICE, "{standing:?} with {ect:02b}");
        // A Reno window halved at 36 + 13 packets falls to 25 and needs 12 round trips to fill the link of 36 again.
        assert!(busy > 0.9, "{busy}");
    }
}

#[test]
fn without_codel_the_sender_fills_the_queue() {
    // 250 packets in flight: 36 on the link, 214 in the queue, and more each round trip.
    assert!(run(Aqm::Off, ecn::NOT_ECT).standing > SERVICE * 200);
}
