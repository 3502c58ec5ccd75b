//! Schedulers and classes in native mode, in virtual time.
#![allow(clippy::unwrap_used)]

mod classes;
mod compare;
mod world;
