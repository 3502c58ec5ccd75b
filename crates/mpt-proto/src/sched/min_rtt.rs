//! Lowest round-trip time first: the default scheduler of Linux MPTCP v0.9x.

use super::{Decision, SchedInput, Schedule, fastest};

/// Takes the path with the lowest smoothed round-trip time that has room.
#[derive(Clone, Copy, Debug)]
pub struct MinRtt;

impl Schedule for MinRtt {
    fn choose(&mut self, len: usize, input: &SchedInput<'_>) -> Decision {
        fastest(input.open(len)).map_or(Decision::Wait, |path| Decision::Send(path.id))
    }
}
