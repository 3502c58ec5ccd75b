//! What is lost, and what a lost path costs: native mode over links that fail, with the laws checked after every run.
#![allow(clippy::unwrap_used)]

mod failure;
mod fec;
mod sizes;
mod world;
