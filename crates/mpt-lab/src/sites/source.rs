//! A source of peers that knows each key, and answers at once.

use super::crowd::keys;
use crate::error::{Context, Result};
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    fs,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::{
        fs::PermissionsExt as _,
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
};

/// The source; its thread ends with its connection.
pub(super) struct PeerSource {
    asked: Arc<AtomicU64>,
    path: PathBuf,
}

impl PeerSource {
    /// Listens, and knows so many sites.
    pub(super) fn listen(path: &Path, known: usize) -> Result<Self> {
        let sites: HashMap<String, usize> = (0..known).map(|site| (keys(site).public().to_string(), site)).collect();
        let listener = UnixListener::bind(path).context("the socket of the source")?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o666)).context("the socket of the source")?;
        let asked = Arc::new(AtomicU64::new(0));
        let count = asked.clone();
        thread::spawn(move || {
            if let Ok((stream, _)) = listener.accept() {
                let _ = serve(&stream, &sites, &count);
            }
        });
        Ok(Self { asked, path: path.to_owned() })
    }

    /// Returns the number of questions.
    pub(super) fn asked(&self) -> u64 {
        self.asked.load(Relaxed)
    }
}

impl Drop for PeerSource {
    fn drop(&mut self) {
        // A thread that waits for its first connection has one.
        let _ = UnixStream::connect(&self.path);
    }
}

fn serve(mut stream: &UnixStream, sites: &HashMap<String, usize>, asked: &AtomicU64) -> std::io::Result<()> {
    for line in BufReader::new(stream).lines() {
        let line: Value = serde_json::from_str(&line?)?;
        let Some((ask, key)) = line["ask"].as_u64().zip(line["key"].as_str()) else { continue };
        asked.fetch_add(1, Relaxed);
        let answer = match sites.get(key) {
            Some(site) => json!({ "answer": ask, "peer": table(*site, key) }),
            None => json!({ "answer": ask, "no": "unknown key" }),
        };
        stream.write_all(format!("{answer}\n").as_bytes())?;
    }
    Ok(())
}

fn table(site: usize, key: &str) -> String {
    let [.., a, b, c] = (site as u32).to_be_bytes();
    format!("name = \"site-{site}\"\npublic_key = \"{key}\"\nnetworks = [\"10.{}.{b}.{c}/32\"]\n", 128 + a)
}
