//! The program's parts, as a library, so that tests and tools can use them without the program.

pub mod legacy;
