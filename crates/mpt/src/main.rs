//! MPT.
fn main() {
    let f = std::env::args().nth(2).unwrap();
    match mpt::config::load(std::path::Path::new(&f)) { Ok(f) => if let Err(e) = mpt::daemon::run(&f) { eprintln!("{e}") }, Err(p) => for p in p { eprintln!("{p}") } }
}
