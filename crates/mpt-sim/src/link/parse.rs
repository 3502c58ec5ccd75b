//! Text form of links in plan files and on command lines: parser and formatter.
//!
//! ```text
//! rate=10mbit,delay=20ms,jitter=5ms,loss=0.5%,queue=400ms      one link; absent settings are ideal
//! rate=50mbit; 5s: rate=5mbit; 10s: repeat                     a schedule
//! rate=10mbit,delay=5ms | rate=1mbit,delay=5ms                 a path: there | back; symmetric without the bar
//! ```
//!
//! `jitter=5ms` is normal, `jitter=uniform:5ms` is uniform; `order=free` allows reordering. `loss=bursts:1%:25%:100%`
//! has the probabilities to enter the bad state, to leave it, and of loss in it. `queue` is a time or a size (`64kB`);
//! `down` is an outage; packets longer than `mtu=1492B` are dropped.

use super::{Change, Conditions, Jitter, LinkSpec, Loss, Order, PathSpec, Queue, Step};
use mpt_proto::time::Rate;
use std::{fmt, str::FromStr, time::Duration};

/// Error in the text of a link; the user's fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// Unknown setting.
    #[error("'{0}' is not a setting of a link; hint: rate, delay, jitter, loss, queue, order, mtu, up, down")]
    Unknown(String),
    /// Invalid rate.
    #[error("'{0}' is not a rate; hint: 10mbit, 2048kbit, 1gbit, max")]
    Rate(String),
    /// Invalid time.
    #[error("'{0}' is not a time; hint: 20ms, 1.5s, 300us")]
    Time(String),
    /// Invalid probability.
    #[error("'{0}' is not a share between 0 % and 100 %; hint: 0.5%")]
    Share(String),
    /// Invalid queue.
    #[error("'{0}' is not a queue; hint: 400ms, 64kB, 1MB")]
    Queue(String),
    /// Invalid packet length.
    #[error("'{0}' is not an MTU; hint: 1492B")]
    Mtu(String),
    /// Invalid order.
    #[error("'{0}' is not an order; hint: keep, free")]
    Order(String),
    /// A step of a schedule without a time, out of order, or with a setting that cannot change.
    #[error("'{0}' is not a step of a schedule; hint: 5s: rate=5mbit, in order of time")]
    Step(String),
}

impl FromStr for PathSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        match text.split_once('|') {
            Some((there, back)) => Ok(Self { there: there.parse()?, back: back.parse()? }),
            None => Ok(Self::symmetric(text.parse()?)),
        }
    }
}

impl FromStr for LinkSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let mut parts = text.split(';').map(str::trim);
        let first = Settings::parse(parts.next().unwrap_or_default())?;
        let start = first.change.applied_to(Conditions::IDEAL);
        let mut link = Self::ideal().with_queue(first.queue.unwrap_or(Queue::for_delay(start.delay)));
        link.start = start;
        link.order = first.order.unwrap_or(Order::Keep);
        link.mtu = first.mtu;
        for part in parts.filter(|part| !part.is_empty()) {
            link.add_step(part)?;
        }
        Ok(link)
    }
}

impl LinkSpec {
    fn add_step(&mut self, text: &str) -> Result<(), SpecError> {
        let error = || SpecError::Step(text.into());
        let (at, what) = text.split_once(':').ok_or_else(error)?;
        let at = time(at.trim())?;
        let last = self.steps.last().map_or(Duration::ZERO, |step| step.at);
        if at < last || self.repeat.is_some() {
            return Err(error());
        }
        if what.trim() == "repeat" {
            self.repeat = Some(at).filter(|at| !at.is_zero());
            return self.repeat.map(drop).ok_or_else(error);
        }
        let Settings { change, queue: None, order: None, mtu: None } = Settings::parse(what)? else {
            return Err(error());
        };
        self.steps.push(Step { at, change });
        Ok(())
    }
}

#[derive(Default)]
struct Settings {
    change: Change,
    queue: Option<Queue>,
    order: Option<Order>,
    mtu: Option<u64>,
}

impl Settings {
    fn parse(text: &str) -> Result<Self, SpecError> {
        let mut settings = Self::default();
        for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            settings.set(word)?;
        }
        Ok(settings)
    }

    fn set(&mut self, word: &str) -> Result<(), SpecError> {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        match name.trim() {
            "rate" => self.change.rate = Some(rate(value)?),
            "delay" => self.change.delay = Some(time(value)?),
            "jitter" => self.change.jitter = Some(jitter(value)?),
            "loss" => self.change.loss = Some(loss(value)?),
            "up" if value.is_empty() => self.change.up = Some(true),
            "down" if value.is_empty() => self.change.up = Some(false),
            "queue" => self.queue = Some(queue(value)?),
            "mtu" => self.mtu = Some(mtu(value)?),
            "order" => self.order = Some(order(value)?),
            _ => return Err(SpecError::Unknown(word.into())),
        }
        Ok(())
    }
}

fn rate(text: &str) -> Result<Rate, SpecError> {
    let units = [("gbit", 1e9), ("mbit", 1e6), ("kbit", 1e3), ("bit", 1.0)];
    match text {
        "max" => Ok(Rate::MAX),
        _ => measure(text, &units).map(|bits| Rate::from_bits(bits as u64)).ok_or_else(|| SpecError::Rate(text.into())),
    }
}

fn time(text: &str) -> Result<Duration, SpecError> {
    let units = [("ns", 1.0), ("us", 1e3), ("µs", 1e3), ("ms", 1e6), ("s", 1e9)];
    let nanos = measure(text, &units).ok_or_else(|| SpecError::Time(text.into()))?;
    Ok(Duration::from_nanos(nanos.round() as u64))
}

fn share(text: &str) -> Result<f64, SpecError> {
    measure(text, &[("%", 0.01)]).filter(|p| (0.0..=1.0).contains(p)).ok_or_else(|| SpecError::Share(text.into()))
}

fn queue(text: &str) -> Result<Queue, SpecError> {
    if let Ok(limit) = time(text) {
        return Ok(Queue::Time(limit));
    }
    let units = [("MB", 1e6), ("kB", 1e3), ("B", 1.0)];
    measure(text, &units).map(|bytes| Queue::Bytes(bytes as u64)).ok_or_else(|| SpecError::Queue(text.into()))
}

fn mtu(text: &str) -> Result<u64, SpecError> {
    measure(text, &[("B", 1.0)]).map(|bytes| bytes as u64).ok_or_else(|| SpecError::Mtu(text.into()))
}

fn jitter(text: &str) -> Result<Jitter, SpecError> {
    let (shape, width): (fn(Duration) -> Jitter, _) = match text.split_once(':') {
        Some(("uniform", width)) => (Jitter::Uniform, time(width)?),
        Some(("normal", width)) => (Jitter::Normal, time(width)?),
        _ => (Jitter::Normal, time(text)?),
    };
    Ok(if width.is_zero() { Jitter::None } else { shape(width) })
}

fn loss(text: &str) -> Result<Loss, SpecError> {
    let Some(chain) = text.strip_prefix("bursts:") else {
        let p = share(text)?;
        return Ok(if p == 0.0 { Loss::None } else { Loss::Random(p) });
    };
    let shares = chain.split(':').map(share).collect::<Result<Vec<_>, _>>()?;
    let [worsen, recover, bad] = shares[..] else { return Err(SpecError::Share(text.into())) };
    Ok(Loss::Bursts { worsen, recover, bad })
}

fn order(text: &str) -> Result<Order, SpecError> {
    match text {
        "keep" => Ok(Order::Keep),
        "free" => Ok(Order::Free),
        _ => Err(SpecError::Order(text.into())),
    }
}

/// Parses a number with a unit. The first matching suffix counts, so longer units must come first.
fn measure(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let (number, factor) = units.iter().find_map(|(unit, factor)| Some((text.trim().strip_suffix(unit)?, factor)))?;
    let number: f64 = number.trim().parse().ok()?;
    Some(number * factor).filter(|value| value.is_finite() && *value >= 0.0 && *value < 1e18)
}

impl fmt::Display for PathSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.there == self.back {
            true => write!(f, "{}", self.there),
            false => write!(f, "{} | {}", self.there, self.back),
        }
    }
}

impl fmt::Display for LinkSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let start = Change::between(Conditions::IDEAL, self.start);
        write!(f, "{start}{}", if start == Change::default() { "" } else { "," })?;
        match self.queue {
            Queue::Bytes(limit) => write!(f, "queue={limit}B")?,
            Queue::Time(limit) => write!(f, "queue={limit:?}")?,
        }
        if self.order == Order::Free {
            write!(f, ",order=free")?;
        }
        if let Some(mtu) = self.mtu {
            write!(f, ",mtu={mtu}B")?;
        }
        for Step { at, change } in &self.steps {
            write!(f, "; {at:?}: {change}")?;
        }
        self.repeat.map_or(Ok(()), |period| write!(f, "; {period:?}: repeat"))
    }
}

impl Change {
    fn between(before: Conditions, after: Conditions) -> Self {
        Self {
            rate: Some(after.rate).filter(|rate| *rate != before.rate),
            delay: Some(after.delay).filter(|delay| *delay != before.delay),
            jitter: Some(after.jitter).filter(|jitter| *jitter != before.jitter),
            loss: Some(after.loss).filter(|loss| *loss != before.loss),
            up: Some(after.up).filter(|up| *up != before.up),
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings = [
            self.rate.map(|rate| match rate {
                Rate::MAX => "rate=max".into(),
                _ => format!("rate={}mbit", rate.bits() as f64 / 1e6),
            }),
            self.delay.map(|delay| format!("delay={delay:?}")),
            self.jitter.map(|jitter| match jitter {
                Jitter::None => "jitter=0ms".into(),
                Jitter::Uniform(width) => format!("jitter=uniform:{width:?}"),
                Jitter::Normal(width) => format!("jitter={width:?}"),
            }),
            self.loss.map(|loss| match loss {
                Loss::None => "loss=0%".into(),
                Loss::Random(p) => format!("loss={}%", percent(p)),
                Loss::Bursts { worsen, recover, bad } => {
                    format!("loss=bursts:{}%:{}%:{}%", percent(worsen), percent(recover), percent(bad))
                }
            }),
            self.up.map(|up| if up { "up".into() } else { "down".into() }),
        ];
        let settings: Vec<String> = settings.into_iter().flatten().collect();
        f.write_str(&settings.join(","))
    }
}

/// Returns a percentage rounded to avoid noise of binary fractions.
fn percent(p: f64) -> f64 {
    (p * 1e10).round() / 1e8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_profile_table_parses_as_a_link() {
        let link: LinkSpec = "rate=40mbit, delay=30ms, jitter=5ms, loss=0.5%".parse().unwrap();
        assert_eq!(link.start.rate, Rate::from_bits(40_000_000));
        assert_eq!(link.start.delay, Duration::from_millis(30));
        assert_eq!(link.start.jitter, Jitter::Normal(Duration::from_millis(5)));
        assert_eq!(link.start.loss, Loss::Random(0.005));
        assert_eq!(link.queue, Queue::Time(Duration::from_millis(100)));
    }

    #[test]
    fn a_schedule_has_steps_and_may_repeat() {
        let link: LinkSpec = "rate=5mbit,queue=1s; 5s: rate=50mbit,down; 10s: repeat".parse().unwrap();
        let change = Change { rate: Some(Rate::from_bits(50_000_000)), up: Some(false), ..Change::default() };
        assert_eq!(link.steps, [Step { at: Duration::from_secs(5), change }]);
        assert_eq!(link.repeat, Some(Duration::from_secs(10)));
    }

    #[test]
    fn a_path_may_differ_by_direction() {
        let path: PathSpec = "rate=10mbit,delay=5ms | rate=1mbit".parse().unwrap();
        assert_eq!(path.there.start.delay, Duration::from_millis(5));
        assert_eq!(path.back.start.rate, Rate::from_bits(1_000_000));
    }

    #[test]
    fn a_printed_path_parses_to_the_same_path() {
        for text in [
            "",
            "rate=2048kbit,mtu=1492B,delay=1.5s,jitter=uniform:300us,loss=0.1%,queue=64kB,order=free",
            "rate=max,loss=bursts:1%:25%:100%; 1s: down; 2s: up,loss=5%; 3s: repeat",
            "rate=10mbit | delay=20ms,jitter=3ms",
        ] {
            let path: PathSpec = text.parse().unwrap();
            assert_eq!(path.to_string().parse::<PathSpec>().unwrap(), path, "{path}");
        }
    }

    #[test]
    fn every_error_has_its_kind() {
        let error = |text: &str| text.parse::<LinkSpec>().unwrap_err();
        assert_eq!(error("speed=3mbit"), SpecError::Unknown("speed=3mbit".into()));
        assert_eq!(error("rate=3"), SpecError::Rate("3".into()));
        assert_eq!(error("rate=-3mbit"), SpecError::Rate("-3mbit".into()));
        assert_eq!(error("delay=3"), SpecError::Time("3".into()));
        assert_eq!(error("loss=101%"), SpecError::Share("101%".into()));
        assert_eq!(error("loss=bursts:1%"), SpecError::Share("bursts:1%".into()));
        assert_eq!(error("queue=much"), SpecError::Queue("much".into()));
        assert_eq!(error("order=any"), SpecError::Order("any".into()));
        for step in ["rate=1mbit", "2s: queue=3ms", "0s: repeat"] {
            assert_eq!(error(&format!("rate=1mbit; {step}")), SpecError::Step(step.into()));
        }
        assert_eq!(error("; 5s: up; 3s: down"), SpecError::Step("3s: down".into()));
    }
}
