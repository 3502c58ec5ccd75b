//! Lowest round-trip time first: the default scheduler of Linux MPTCP v0.9x.

use super::{Decision, Scene, Schedule};

/// Takes the path with the lowest smoothed round-trip time that has room.
#[derive(Clone, Copy, Debug)]
pub struct MinRtt;

impl Schedule for MinRtt {
    fn choose(&mut self, len: usize, scene: &Scene<'_>) -> Decision {
        let best = scene.open(len).min_by_key(|path| (path.srtt, path.id));
        best.map_or(Decision::Wait, |path| Decision::Send(path.id))
    }
}
