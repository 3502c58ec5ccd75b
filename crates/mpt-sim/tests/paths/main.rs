//! Native paths that migrate, appear, disappear and stand by.
#![allow(clippy::unwrap_used)]

mod ends;
mod outages;
mod overflow;
mod path_test;
mod roaming;
mod roles;
