//! `mpt-lab fleet`.

use clap::{Args, ValueEnum};
use mpt_lab::fleet::{Churn, Fleet, Routing};
use mpt_sim::seed::Seed;
use std::{error::Error, path::PathBuf, time::Duration};

/// A fleet whose programs die.
#[derive(Args)]
pub(crate) struct FleetArgs {
    /// Number of sites.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u8).range(1..=200))]
    sites: u8,
    /// Routing daemon of the routers.
    #[arg(long, value_enum, default_value_t = Router::Bird)]
    router: Router,
    /// Number of deaths.
    #[arg(long, default_value_t = 3)]
    deaths: usize,
    /// File for the picture.
    #[arg(long, default_value = "demo-fleet.svg")]
    picture: PathBuf,
    /// In place of the deaths: kills programs, stops and revokes sites for this time (90s, 10m, 2h), and checks that
    /// everything becomes whole again and nothing grows.
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with_all = ["deaths", "picture"])]
    churn: Option<Duration>,
    /// Seed of the schedule of the churn.
    #[arg(long, default_value_t = 1, requires = "churn")]
    seed: u64,
}

#[derive(Clone, Copy, ValueEnum)]
enum Router {
    Bird,
    Frr,
}

/// Kills the servers one after the other, or runs the churn.
pub(crate) fn run(args: &FleetArgs) -> Result<(), Box<dyn Error>> {
    let sites = args.sites.into();
    let routing = match args.router {
        Router::Bird => Routing::Bird,
        Router::Frr => Routing::Frr,
    };
    match args.churn {
        Some(length) => churn(&Churn { sites, length, seed: Seed(args.seed), routing }),
        None => deaths(&Fleet { sites, deaths: args.deaths, routing, ..Fleet::default() }, args),
    }
}

fn deaths(fleet: &Fleet, args: &FleetArgs) -> Result<(), Box<dyn Error>> {
    let result = fleet.run(&mut |line| eprintln!("{line}"))?;
    print!("{result}");
    result.draw(&args.picture)?;
    println!("picture: {}", args.picture.display());
    match result.lost() {
        0 => Ok(()),
        lost => Err(format!("{lost} TCP connections were lost").into()),
    }
}

fn churn(churn: &Churn) -> Result<(), Box<dyn Error>> {
    let report = churn.run(&mut |line| eprintln!("{line}"))?;
    print!("{report}");
    match report.is_good() {
        true => Ok(()),
        false => {
            let seed = churn.seed.0;
            Err(format!("the churn left damage; hint: mpt-lab fleet --churn ... --seed {seed} repeats the schedule")
                .into())
        }
    }
}

/// Reads a duration such as `90s`, `10m` or `2h`.
fn duration(text: &str) -> Result<Duration, String> {
    let bad = || format!("'{text}' is no duration; hint: 90s, 10m, 2h");
    let (number, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or_else(bad)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return Err(bad()),
    };
    let number: u32 = number.parse().map_err(|_| bad())?;
    Ok(Duration::from_secs(u64::from(number) * seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_a_number_and_a_unit() {
        let seconds = |text| duration(text).map(|time| time.as_secs());
        assert_eq!([seconds("90s"), seconds("100m"), seconds("2h")], [Ok(90), Ok(6_000), Ok(7_200)]);
        for bad in ["", "s", "90", "-1s", "1d", "1.5h", "5µ"] {
            assert_eq!(duration(bad), Err(format!("'{bad}' is no duration; hint: 90s, 10m, 2h")));
        }
    }
}
