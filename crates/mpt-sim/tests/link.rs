//! The link model against arithmetic and statistics. Seeds are fixed, so a bound of four standard deviations gives
//! stable results.

use mpt_proto::time::{Rate, Time};
use mpt_sim::{
    link::{Change, DropReason, Fate, Jitter, Link, LinkSpec, Loss, Order, Queue, Step, shapes},
    seed::Seed,
};
use proptest::prelude::*;
use std::time::Duration;

const TEN_MBIT: Rate = Rate::from_bits(10_000_000);
const FRAME: usize = 1_250;
/// Transmission time of a frame of [`FRAME`] bytes at [`TEN_MBIT`].
const MS: Duration = Duration::from_millis(1);

fn at(millis: u64) -> Time {
    Time::after(MS * millis as u32)
}

fn link(spec: LinkSpec) -> Link {
    Link::new(&spec, Seed(1))
}

fn ten_mbit() -> LinkSpec {
    LinkSpec::new(TEN_MBIT, Duration::ZERO).with_queue(Queue::Bytes(u64::MAX / 2))
}

/// Returns the arrival times of `count` frames offered every `gap`, without lost ones.
fn arrivals(link: &mut Link, count: u32, gap: Duration) -> Vec<(Time, Time)> {
    let sent = (0..count).map(|i| Time::after(gap * i));
    sent.filter_map(|sent| match link.push(sent, FRAME) {
        Fate::Deliver(arrival) => Some((sent, arrival)),
        Fate::Dropped(_) => None,
    })
    .collect()
}

#[test]
fn a_busy_link_sends_exactly_at_its_rate() {
    let mut link = link(ten_mbit());
    for frame in 1..=10_000 {
        assert_eq!(link.push(Time::START, FRAME), Fate::Deliver(at(frame)));
    }
}

#[test]
fn an_idle_link_adds_transmission_and_delay() {
    let mut link = link(LinkSpec::new(TEN_MBIT, MS * 20));
    assert_eq!(link.push(at(5), FRAME), Fate::Deliver(at(5 + 1 + 20)));
    assert_eq!(link.push(at(100), FRAME), Fate::Deliver(at(121)));
}

#[test]
fn an_ideal_link_does_nothing() {
    let mut link = link(LinkSpec::ideal());
    assert_eq!(link.push(at(3), 9_000), Fate::Deliver(at(3)));
    assert_eq!(link.push(at(3), 9_000), Fate::Deliver(at(3)));
}

#[test]
fn a_queue_of_bytes_does_not_count_the_frame_in_transmission() {
    let mut link = link(ten_mbit().with_queue(Queue::Bytes(10 * FRAME as u64)));
    let fates: Vec<Fate> = (0..12).map(|_| link.push(Time::START, FRAME)).collect();
    assert_eq!(fates[10], Fate::Deliver(at(11)));
    assert_eq!(fates[11], Fate::Dropped(DropReason::QueueFull));
    assert_eq!(link.backlog(Time::START), 10 * FRAME as u64);
    assert_eq!(link.push(at(1), FRAME), Fate::Deliver(at(12)), "room again once the first frame is through");
}

#[test]
fn a_queue_of_time_lets_no_frame_wait_longer() {
    let mut link = link(ten_mbit().with_queue(Queue::Time(MS * 10)));
    let fates: Vec<Fate> = (0..12).map(|_| link.push(Time::START, FRAME)).collect();
    assert_eq!(fates[10], Fate::Deliver(at(11)), "waits 10 ms, takes one");
    assert_eq!(fates[11], Fate::Dropped(DropReason::QueueFull));
}

#[test]
fn a_lost_frame_has_used_the_transmitter() {
    let mut link =
        link(ten_mbit().with_steps(vec![Step { at: MS, change: loss(0.0) }], None).with_loss(Loss::Random(1.0)));
    let _ = link.push(Time::START, FRAME / 2);
    assert_eq!(link.counts().lost, 1);
    assert_eq!(link.push(Time::START, FRAME / 2), Fate::Deliver(at(1)));
}

#[test]
fn a_frame_caught_by_a_change_of_rate_is_sent_at_both_rates() {
    let steps = vec![Step { at: MS * 4, change: Change::rate(Rate::from_bits(1_000_000)) }];
    let mut link = link(ten_mbit().with_steps(steps, None));
    // Half of the frame is sent in the first four milliseconds at 1250 B/ms, half afterwards at 125 B/ms.
    assert_eq!(link.push(Time::START, 10_000), Fate::Deliver(at(4 + 40)));
}

#[test]
fn frames_wait_in_a_stall_and_are_dropped_in_an_outage() {
    let stall =
        vec![Step { at: MS, change: Change::rate(Rate::ZERO) }, Step { at: MS * 50, change: Change::rate(TEN_MBIT) }];
    let mut stalled = link(ten_mbit().with_steps(stall, None));
    assert_eq!(stalled.push(at(2), FRAME), Fate::Deliver(at(51)));

    let mut out = link(LinkSpec::new(TEN_MBIT, MS * 5).with_steps(vec![up(10, false), up(20, true)], None));
    assert_eq!(out.push(at(2), FRAME), Fate::Deliver(at(8)));
    assert_eq!(out.push(at(7), FRAME), Fate::Dropped(DropReason::Outage), "would arrive in the outage");
    assert_eq!(out.push(at(19), FRAME), Fate::Dropped(DropReason::Outage));
    assert_eq!(out.push(at(20), FRAME), Fate::Deliver(at(26)));
}

#[test]
fn a_link_that_never_sends_again_drops() {
    let mut dead = link(ten_mbit().with_steps(vec![Step { at: MS, change: Change::rate(Rate::ZERO) }], Some(MS * 2)));
    assert_eq!(dead.push(Time::START, 2 * FRAME), Fate::Deliver(at(3)), "a repeated stall only delays");
    let mut dead = link(LinkSpec::new(Rate::ZERO, MS).with_steps(vec![], Some(MS)));
    assert_eq!(dead.push(Time::START, FRAME), Fate::Dropped(DropReason::Outage));
    let too_late = vec![Step { at: MS * 3, change: Change::rate(TEN_MBIT) }];
    let mut dead = link(LinkSpec::new(Rate::ZERO, MS).with_steps(too_late, Some(MS * 3)));
    assert_eq!(dead.push(Time::START, FRAME), Fate::Dropped(DropReason::Outage), "it begins again before it sends");
}

#[test]
fn an_alternating_rate_repeats_and_has_the_mean_goodput() {
    let (low, high) = (Rate::from_bits(5_000_000), Rate::from_bits(50_000_000));
    let spec = ten_mbit().with_steps(shapes::alternating(low, high, MS * 5_000), Some(MS * 10_000));
    let mut link = link(spec);
    // 40 s at a mean of 27.5 Mbit/s.
    let frames = 40 * 27_500_000 / 8 / FRAME as u64;
    let fates: Vec<Fate> = (0..frames).map(|_| link.push(Time::START, FRAME)).collect();
    assert_eq!(fates.last(), Some(&Fate::Deliver(at(40_000))));
}

#[test]
fn a_cut_link_drops_and_a_restored_one_delivers() {
    let mut link = link(ten_mbit());
    link.cut(true);
    assert_eq!(link.push(at(1), FRAME), Fate::Dropped(DropReason::Outage));
    link.cut(false);
    assert_eq!(link.push(at(2), FRAME), Fate::Deliver(at(3)));
}

#[test]
fn a_changed_link_starts_its_schedule_at_the_change() {
    let mut link = link(ten_mbit());
    link.change(at(100), &ten_mbit().with_steps(vec![up(10, false)], None));
    assert_eq!(link.push(at(105), FRAME), Fate::Deliver(at(106)));
    assert_eq!(link.push(at(110), FRAME), Fate::Dropped(DropReason::Outage));
}

#[test]
fn random_loss_is_within_four_standard_deviations() {
    for p in [0.001_f64, 0.01, 0.05, 0.5] {
        let n = 200_000;
        let mut link = link(LinkSpec::ideal().with_loss(Loss::Random(p)));
        let lost = f64::from(n) - arrivals(&mut link, n, MS).len() as f64;
        let deviation = (f64::from(n) * p * (1.0 - p)).sqrt();
        assert!((lost - f64::from(n) * p).abs() < 4.0 * deviation, "p {p}: lost {lost}");
    }
}

#[test]
fn burst_loss_has_the_mean_and_the_burst_length_of_its_chain() {
    let chain = Loss::Bursts { worsen: 0.01, recover: 0.25, bad: 1.0 };
    assert!((chain.mean() - 0.01 / 0.26).abs() < 1e-12);
    let mut link = link(LinkSpec::ideal().with_loss(chain));
    let lost: Vec<bool> = (0..200_000).map(|i| link.push(at(i), FRAME) == Fate::Dropped(DropReason::Loss)).collect();
    let total = lost.iter().filter(|lost| **lost).count() as f64;
    let bursts = lost.windows(2).filter(|pair| !pair[0] && pair[1]).count() as f64;
    assert!((total / 200_000.0 / chain.mean() - 1.0).abs() < 0.1, "mean {}", total / 200_000.0);
    assert!((total / bursts - 4.0).abs() < 0.3, "a burst lasts 1 / recover frames: {}", total / bursts);
}

#[test]
fn uniform_jitter_fills_its_interval_evenly() {
    let delays = jittered(Jitter::Uniform(MS * 10));
    let quarter =
        |from: f64| delays.iter().filter(|d| (from..from + 5.0).contains(*d)).count() as f64 / delays.len() as f64;
    assert!(delays.iter().all(|d| (30.0..=50.0).contains(d)));
    for from in [30.0, 35.0, 40.0, 45.0] {
        // Four standard deviations of a share of one quarter in 100,000.
        assert!((quarter(from) - 0.25).abs() < 0.0055, "{from}: {}", quarter(from));
    }
}

#[test]
fn normal_jitter_has_its_mean_its_deviation_and_its_tail() {
    let delays = jittered(Jitter::Normal(MS * 5));
    let n = delays.len() as f64;
    let mean = delays.iter().sum::<f64>() / n;
    let deviation = (delays.iter().map(|d| (d - mean).powi(2)).sum::<f64>() / n).sqrt();
    let beyond_two = delays.iter().filter(|d| (*d - 40.0).abs() > 10.0).count() as f64 / n;
    assert!((mean - 40.0).abs() < 4.0 * 5.0 / n.sqrt(), "{mean}");
    assert!((deviation - 5.0).abs() < 4.0 * 5.0 / (2.0 * n).sqrt(), "{deviation}");
    assert!((beyond_two - 0.0455).abs() < 0.003, "{beyond_two}");
}

/// Returns the delays in milliseconds of 100,000 frames over 40 ms.
fn jittered(jitter: Jitter) -> Vec<f64> {
    let mut link = link(LinkSpec::new(Rate::MAX, MS * 40).with_jitter(jitter, Order::Free));
    arrivals(&mut link, 100_000, MS).iter().map(|(sent, arrival)| (*arrival - *sent).as_secs_f64() * 1e3).collect()
}

#[test]
fn jitter_reorders_only_if_permitted() {
    let overtakes = |order| {
        let mut link = link(LinkSpec::new(TEN_MBIT, MS * 20).with_jitter(Jitter::Normal(MS * 5), order));
        arrivals(&mut link, 10_000, MS).windows(2).filter(|pair| pair[1].1 < pair[0].1).count()
    };
    assert_eq!(overtakes(Order::Keep), 0);
    assert!(overtakes(Order::Free) > 1_000);
}

#[test]
fn the_same_seed_gives_the_same_fates_and_another_seed_others() {
    let spec: LinkSpec = "rate=10mbit,delay=20ms,jitter=5ms,loss=2%,order=free".parse().expect("a valid link");
    let fates = |seed| {
        let mut link = Link::new(&spec, Seed(seed));
        (0..1_000).map(|i| link.push(at(i), FRAME)).collect::<Vec<_>>()
    };
    assert_eq!(fates(3), fates(3));
    assert_ne!(fates(3), fates(4));
}

fn loss(p: f64) -> Change {
    Change { loss: Some(Loss::Random(p)), ..Change::default() }
}

fn up(millis: u32, up: bool) -> Step {
    Step { at: MS * millis, change: Change { up: Some(up), ..Change::default() } }
}

proptest! {
    /// For any offered frames: none arrives too early, the rate is not exceeded, order is kept, the queue never exceeds
    /// its limit, and every frame is counted once.
    #[test]
    fn no_link_exceeds_its_rate_or_its_queue(
        offers in prop::collection::vec((0_u64..3_000_000, 60_usize..1_600), 1..300),
        mbit in 1_u64..200,
        delay in 0_u64..50,
        limit in 2_000_u64..100_000,
    ) {
        let rate = Rate::from_bits(mbit * 1_000_000);
        let spec = LinkSpec::new(rate, MS * delay as u32).with_queue(Queue::Bytes(limit));
        let mut link = link(spec.with_jitter(Jitter::Uniform(MS), Order::Keep).with_loss(Loss::Random(0.1)));
        let (mut now, mut last, mut first, mut bytes) = (Time::START, Time::START, None, 0_u64);
        for (gap, frame) in offers {
            now += Duration::from_nanos(gap);
            let first = *first.get_or_insert(now);
            let fate = link.push(now, frame);
            prop_assert!(link.backlog(now) <= limit);
            let Fate::Deliver(arrival) = fate else { continue };
            bytes += frame as u64;
            let least = (MS * delay as u32).saturating_sub(MS);
            prop_assert!(arrival >= now + rate.time_for(frame as u64) + least);
            prop_assert!(arrival >= first + rate.time_for(bytes) + least);
            prop_assert!(arrival >= last);
            last = arrival;
        }
        let counts = link.counts();
        prop_assert_eq!(counts.offered, counts.delivered + counts.queue_full + counts.lost + counts.outage);
        prop_assert_eq!(counts.delivered_bytes, bytes);
    }
}
