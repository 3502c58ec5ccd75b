//! Result store: a folder with the options in `run.json`, the origin in `origin.json`, and one line of
//! `measured.jsonl` per finished case, so that an interrupted run can continue.

use super::{Options, origin::RunOrigin, result::CaseResult};
use crate::error::{Context, LabError, Result};
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

/// The results of one run.
#[derive(Debug)]
pub struct Store {
    folder: PathBuf,
    lines: File,
    /// Folder to which conflicting results of an earlier run were moved.
    pub earlier: Option<PathBuf>,
    /// Results so far, in order.
    pub results: Vec<CaseResult>,
}

impl Store {
    /// Opens `folder` for a run. Continues an unfinished run with the same options; otherwise archives the old results
    /// and starts empty.
    pub fn open(folder: &Path, options: &Options) -> Result<Self> {
        let what = || folder.display().to_string();
        fs::create_dir_all(folder).context(what())?;
        let same = read_options(folder).is_ok_and(|old| old == *options);
        let fresh = !same || folder.join(FINISHED).exists();
        let earlier = if fresh { begin(folder, options)? } else { None };
        let results = read_results(folder)?;
        let lines = OpenOptions::new().append(true).create(true).open(folder.join(MEASURED)).context(what())?;
        Ok(Self { folder: folder.into(), lines, earlier, results })
    }

    /// Returns the folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the result of a case.
    pub fn find(&self, experiment: &str, case: &str) -> Option<&CaseResult> {
        self.results.iter().find(|result| result.experiment == experiment && result.case == case)
    }

    /// Saves a result.
    pub fn add(&mut self, result: CaseResult) -> Result<()> {
        let line = serde_json::to_string(&result).expect("results are plain data");
        writeln!(self.lines, "{line}").context(self.folder.join(MEASURED).display().to_string())?;
        self.results.push(result);
        Ok(())
    }

    /// Marks the run as finished, so that the same command starts a new one.
    pub fn finish(&self) -> Result<()> {
        File::create(self.folder.join(FINISHED)).map(drop).context(self.folder.display().to_string())
    }
}

fn begin(folder: &Path, options: &Options) -> Result<Option<PathBuf>> {
    let earlier = archive(folder).context(folder.display().to_string())?;
    let text = serde_json::to_string_pretty(options).expect("options are plain data");
    fs::write(folder.join(OPTIONS), text).context(folder.join(OPTIONS).display().to_string())?;
    let text = serde_json::to_string_pretty(&RunOrigin::now()).expect("an origin is plain data");
    fs::write(folder.join(ORIGIN), text).context(folder.join(ORIGIN).display().to_string())?;
    Ok(earlier)
}

/// Moves a run that has results into the first free `earlier-N`, where `mpt-lab report` finds it.
fn archive(folder: &Path) -> io::Result<Option<PathBuf>> {
    // The file may be absent; if it cannot be removed, writing it fails later.
    let _ = fs::remove_file(folder.join(FINISHED));
    if fs::metadata(folder.join(MEASURED)).map_or(0, |file| file.len()) == 0 {
        return Ok(None);
    }
    let mut names = (1..).map(|number: u32| folder.join(format!("earlier-{number}")));
    let earlier = names.find(|earlier| !earlier.exists()).expect("one of them is free");
    fs::create_dir(&earlier)?;
    for name in [MEASURED, OPTIONS, ORIGIN].iter().filter(|name| folder.join(name).exists()) {
        fs::rename(folder.join(name), earlier.join(name))?;
    }
    Ok(Some(earlier))
}

/// Returns the options of the run in `folder`.
pub fn read_options(folder: &Path) -> Result<Options> {
    let file = folder.join(OPTIONS);
    let text = fs::read_to_string(&file).context(file.display().to_string())?;
    serde_json::from_str(&text).map_err(|error| unreadable(&file, &error))
}

/// Returns the origin of the run in `folder`; empty if an older program measured it.
pub fn read_origin(folder: &Path) -> RunOrigin {
    let text = fs::read_to_string(folder.join(ORIGIN)).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

/// Returns the results in `folder`; ignores an incomplete last line.
pub fn read_results(folder: &Path) -> Result<Vec<CaseResult>> {
    let file = folder.join(MEASURED);
    let text = fs::read_to_string(&file).unwrap_or_default();
    let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    let results = whole.map(serde_json::from_str).collect::<std::result::Result<_, _>>();
    if !text.is_empty() && !text.ends_with('\n') {
        let kept = text.rfind('\n').map_or("", |end| &text[..=end]);
        fs::write(&file, kept).context(file.display().to_string())?;
    }
    results.map_err(|error| unreadable(&file, &error))
}

fn unreadable(file: &Path, error: &serde_json::Error) -> LabError {
    let message = format!("{error}; hint: remove the folder to start a new run");
    LabError::Failed { command: format!("read {}", file.display()), message }
}

const OPTIONS: &str = "run.json";
const ORIGIN: &str = "origin.json";
const MEASURED: &str = "measured.jsonl";
const FINISHED: &str = "finished";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{experiment::result::Substrate, tunnel::Mode};

    fn result(case: &str) -> CaseResult {
        CaseResult { experiment: "T".into(), case: case.into(), ..CaseResult::default() }
    }

    #[test]
    fn an_interrupted_run_continues_and_a_finished_one_is_archived() {
        let folder = std::env::temp_dir().join(format!("mpt-lab-store-{}", std::process::id()));
        let options = Options {
            keys: vec!["T".into()],
            quick: true,
            seed: 1,
            substrate: Substrate::Netns,
            mode: Mode::Plain,
            against: Vec::new(),
            build: String::new(),
        };
        let mut store = Store::open(&folder, &options).unwrap();
        store.add(result("0")).unwrap();
        // Simulates a crash in the middle of a line.
        write!(store.lines, "{{\"experiment\":\"T\",\"ca").unwrap();
        let mut again = Store::open(&folder, &options).unwrap();
        assert_eq!(again.results, [result("0")]);
        again.add(result("1")).unwrap();
        assert_eq!(Store::open(&folder, &options).unwrap().results, [result("0"), result("1")]);
        again.finish().unwrap();
        let mut fresh = Store::open(&folder, &options).unwrap();
        assert!(fresh.results.is_empty());
        let earlier = fresh.earlier.clone().expect("the finished run is kept");
        assert_eq!(read_results(&earlier).unwrap(), [result("0"), result("1")]);
        fresh.add(result("0")).unwrap();
        let other = Options { seed: 2, ..options.clone() };
        let another = Store::open(&folder, &other).unwrap();
        assert!(another.results.is_empty(), "another seed is another run");
        let second = another.earlier.expect("the run that was not finished is kept");
        assert!(second != earlier && read_options(&second).unwrap() == options);
        assert_eq!(read_results(&second).unwrap(), [result("0")]);
        fs::remove_dir_all(folder).unwrap();
    }
}
