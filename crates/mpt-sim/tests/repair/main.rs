//! Recovery from loss and path failure: native mode over failing links; the laws are checked after every run.
#![allow(clippy::unwrap_used)]

mod failure;
mod fec;
mod pmtu;
mod queue;
mod world;
