//! Two commands to a tunnel: `mpt setup server` on the server, `mpt join LINE` on the site.
//!
//! ```text
//! server, root:  mpt setup server, mpt peer add --> token -.             LINE: addresses, port, key, token
//!                                                           v
//!                mpt enroll (root) <== socket pair ==> listener (no rights) <--- TCP --- mpt join LINE (root)
//!                   |  token, key                          Noise_IK, 128 octets             | own key, config
//!                   '--> NAME.d/PEER.toml, mpt reload                                        '--> NAME.toml, service
//! ```
//!
//! - [`line`](EnrolmentLine) is the text that the site gets, `tokens` what the server keeps of it: a hash, and when it
//!   expires;
//! - `listen` reads requests without any rights, `admit` decides about them as root, `pool` finds addresses;
//! - `fleet` sends a question to the source of peers, where the tunnel has one, and passes its decision on;
//! - `server` and `join` write configurations, `manifest` records what they created, `undo` removes it;
//! - `peers` adds, removes and shows peers of a running server;
//! - `host` is about this host: its addresses, its firewall, its service manager.
//!
//! The private key of the site never leaves the site, and the server never writes a token to disk.

mod admit;
mod answer;
mod firewall;
mod fleet;
mod host;
mod join;
mod line;
mod listen;
mod manifest;
mod name;
mod peers;
mod pool;
mod server;
mod site_config;
mod state;
mod tokens;
mod undo;

pub use admit::run as enroll;
pub use join::{Join, run as join};
pub use line::{EnrolmentLine, ServerHost};
pub use listen::run as listen;
pub use name::Name;
pub use peers::{add, pending, remove, show};
pub use server::{ServerArgs, lifetime, run as setup_server};
pub use undo::run as undo;

/// The interface of the tunnel, and the name of its files, by default.
pub const NAME: &str = crate::config::defaults::INTERFACE;
