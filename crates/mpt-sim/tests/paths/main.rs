//! Native paths that move, come, go and stand by.
#![allow(clippy::unwrap_used)]

mod absence;
mod ends;
mod roaming;
mod roles;
