//! The built-in plans, and their selection by name.

use super::{
    expand::parse,
    model::{Case, Plan},
    population,
    problem::Problem,
};
use std::path::{Path, PathBuf};

/// Returns the plans of the catalogue in order.
pub fn catalogue() -> Result<Vec<Plan>, Problem> {
    FILES.iter().map(|(name, text)| parse(&Path::new("lab").join(name), text)).collect()
}

/// Returns the plans that `key` selects, each with the cases to run: a plan's key (`E1.I`), a group (`E1`), a case
/// (`E1.I/50`, or `rtt_40` if the case has its own name), `all`, a plan file (`./mine.toml`) or a case of it
/// (`./mine.toml/50`), or random mixes (`population/SEED`, `population/SEED/CASE`).
///
/// # Errors
/// Returns the error in the file, or the available keys.
pub fn select(key: &str) -> Result<Vec<Plan>, Box<dyn std::error::Error>> {
    if key.ends_with(".toml") {
        return Ok(vec![read(Path::new(key))?]);
    }
    if let Some(plan) = population::select(key) {
        return Ok(vec![plan]);
    }
    if let Some((file, name)) = key.split_once(".toml/") {
        let file = PathBuf::from(format!("{file}.toml"));
        let plan = read(&file)?;
        let case = one_case(&plan, &format!("{}/{name}", plan.key));
        return case.map(|plan| vec![plan]).ok_or_else(|| no_case(&plan, name).into());
    }
    let plans = catalogue()?;
    let named = |plan: &&Plan| key == "all" || plan.key == key || plan.key.starts_with(&format!("{key}."));
    let whole: Vec<Plan> = plans.iter().filter(named).cloned().collect();
    let chosen = if whole.is_empty() { plans.iter().find_map(|plan| one_case(plan, key)) } else { None };
    match (whole.is_empty(), chosen) {
        (false, _) => Ok(whole),
        (true, Some(plan)) => Ok(vec![plan]),
        (true, None) => Err(unknown(key, &plans).into()),
    }
}

fn read(file: &Path) -> Result<Plan, Box<dyn std::error::Error>> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| format!("{}: {error}; hint: the file of a plan", file.display()))?;
    Ok(parse(file, &text)?)
}

fn no_case(plan: &Plan, name: &str) -> String {
    let names: Vec<&str> = plan.cases.iter().map(|case| case.name.as_str()).collect();
    format!("{} has no case '{name}'; hint: one of {}", plan.key, names.join(", "))
}

fn one_case(plan: &Plan, key: &str) -> Option<Plan> {
    let name = key.strip_prefix(&plan.key).and_then(|rest| rest.strip_prefix('/')).unwrap_or(key);
    let own_name = plan.axes.is_empty() || name != key;
    let case = plan.cases.iter().find(|case| own_name && case.name == name)?;
    Some(Plan { cases: vec![Case { quick: true, ..case.clone() }], ..plan.clone() })
}

fn unknown(key: &str, plans: &[Plan]) -> String {
    let similarity = |plan: &&Plan| (strsim::normalized_damerau_levenshtein(key, &plan.key) * 100.0) as u32;
    let keys: Vec<&str> = plans.iter().map(|plan| plan.key.as_str()).collect();
    let hint = match plans.iter().max_by_key(similarity).filter(|plan| similarity(plan) >= 60) {
        Some(plan) => format!("did you mean {}?", plan.key),
        None => format!("one of {}, or all; see 'mpt-lab list'", keys.join(", ")),
    };
    format!("there is no experiment '{key}'; hint: {hint}")
}

/// Files with their names, so that an error can be reported with file and line.
const FILES: &[(&str, &str)] = &[
    ("e1-1.toml", include_str!("../../../../lab/e1-1.toml")),
    ("e1-2.toml", include_str!("../../../../lab/e1-2.toml")),
    ("e1-3.toml", include_str!("../../../../lab/e1-3.toml")),
    ("e1-4.toml", include_str!("../../../../lab/e1-4.toml")),
    ("e1-5.toml", include_str!("../../../../lab/e1-5.toml")),
    ("e1-6.toml", include_str!("../../../../lab/e1-6.toml")),
    ("e2-udp.toml", include_str!("../../../../lab/e2-udp.toml")),
    ("e2-http.toml", include_str!("../../../../lab/e2-http.toml")),
    ("e2-udp-unshaped.toml", include_str!("../../../../lab/e2-udp-unshaped.toml")),
    ("e2-http-unshaped.toml", include_str!("../../../../lab/e2-http-unshaped.toml")),
    ("e3-delay.toml", include_str!("../../../../lab/e3-delay.toml")),
    ("e3-jitter.toml", include_str!("../../../../lab/e3-jitter.toml")),
    ("e3-loss.toml", include_str!("../../../../lab/e3-loss.toml")),
    ("e3-mixed.toml", include_str!("../../../../lab/e3-mixed.toml")),
    ("e4.toml", include_str!("../../../../lab/e4.toml")),
    ("static.toml", include_str!("../../../../lab/static.toml")),
    ("dynamic.toml", include_str!("../../../../lab/dynamic.toml")),
    ("latency.toml", include_str!("../../../../lab/latency.toml")),
    ("flows.toml", include_str!("../../../../lab/flows.toml")),
    ("schedulers.toml", include_str!("../../../../lab/schedulers.toml")),
    ("outages.toml", include_str!("../../../../lab/outages.toml")),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::contender::SETTLING_TIME;

    #[test]
    fn every_file_in_the_folder_is_in_the_catalogue() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab");
        let mut files: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .filter(|name| name.ends_with(".toml"))
            .collect();
        let mut known: Vec<&str> = FILES.iter().map(|(name, _)| *name).collect();
        files.sort();
        known.sort_unstable();
        assert_eq!(files, known);
    }

    #[test]
    fn every_plan_of_the_catalogue_can_be_read_and_has_its_own_key() {
        let plans = catalogue().unwrap_or_else(|problem| panic!("{problem}"));
        for plan in &plans {
            assert_eq!(plans.iter().filter(|other| other.key == plan.key).count(), 1, "{}", plan.key);
            assert!(plan.cases.iter().any(|case| case.quick), "{} has a quick run", plan.key);
        }
    }

    #[test]
    fn a_quick_run_of_everything_takes_less_than_twenty_minutes() {
        // Contenders: each path, an ideal link, MPTCP and MPT. The overhead of a measurement was 0.7 to 0.9 s.
        let around = std::time::Duration::from_millis(900);
        let of = |plan: &Plan| {
            let quick = || plan.cases.iter().filter(|case| case.quick);
            let runs: usize = quick().map(|case| case.paths.len() + 3).sum();
            (plan.length.quick + around) * runs as u32 + SETTLING_TIME * quick().count() as u32
        };
        let whole: std::time::Duration = catalogue().unwrap().iter().map(of).sum();
        assert!(whole.as_secs() < 20 * 60, "{whole:?}");
    }

    #[test]
    fn a_key_is_a_plan_a_group_a_case_or_everything() {
        let keys = |key| select(key).unwrap().iter().map(|plan| plan.key.clone()).collect::<Vec<_>>();
        assert_eq!(keys("E1.I"), ["E1.I"]);
        assert_eq!(keys("E3").len(), 4);
        assert_eq!(keys("all").len(), FILES.len());
        assert_eq!(select("E1.I/50").unwrap()[0].cases.len(), 1);
        assert_eq!(select("rtt_40").unwrap()[0].cases[0].name, "rtt_40");
        assert!(select("E1.X").unwrap_err().to_string().contains("did you mean E1."));
    }
}
