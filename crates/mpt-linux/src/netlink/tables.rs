//! Reports changes of tables of nftables, which firewall scripts delete.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_packet_core::NlasIterator;
use netlink_sys::protocols::NETLINK_NETFILTER;
use netlink_sys::{Socket, SocketAddr};
use nix::libc;

use super::socket::{HEADER, slices};
use crate::Error;

/// A netlink socket that is subscribed to changes of tables.
#[derive(Debug)]
pub struct TableMonitor(Socket);

impl TableMonitor {
    /// Opens the socket and subscribes. Later changes are reported. Needs CAP_NET_ADMIN.
    pub fn open() -> Result<Self, Error> {
        open_socket().map(Self).map_err(|cause| Error::new("subscribe to changes of nftables", cause))
    }

    /// Returns true if one of the tables with these names, or a part of it, was changed by any process since the last
    /// call, or if events were lost.
    pub fn take_changed(&mut self, names: &[&str]) -> Result<bool, Error> {
        let mut changed = false;
        loop {
            match self.0.recv_from_full() {
                Ok((datagram, _)) => {
                    let mut tables = slices(&datagram).filter_map(|frame| table(frame.ok()?));
                    changed |= tables.any(|table| names.iter().any(|name| name.as_bytes() == table));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(changed),
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => changed = true,
                Err(error) => return Err(Error::new("receive changes of nftables", error)),
            }
        }
    }
}

impl AsFd for TableMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn open_socket() -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_NETFILTER)?;
    socket.set_non_blocking(true)?;
    socket.bind(&SocketAddr::new(0, 0))?;
    socket.add_membership(libc::NFNLGRP_NFTABLES as u32)?;
    Ok(socket)
}

/// Returns the name of the table that a message is about. All kinds of objects have it in their first attribute.
/// Changes of elements of sets do not count: a resolver adds the addresses of names.
fn table(frame: &[u8]) -> Option<Vec<u8>> {
    let kind = u16::from_ne_bytes([*frame.get(4)?, *frame.get(5)?]);
    if ELEMENTS.contains(&(i32::from(kind) & 0xff)) {
        return None;
    }
    let attributes = NlasIterator::new(frame.get(HEADER + SUBHEADER..)?);
    let name = attributes.map_while(Result::ok).find(|attribute| attribute.kind() == TABLE)?;
    Some(name.value().strip_suffix(&[0])?.to_vec())
}

/// The messages on elements of sets, without the subsystem.
const ELEMENTS: [i32; 2] = [libc::NFT_MSG_NEWSETELEM, libc::NFT_MSG_DELSETELEM];
/// Length of a `struct nfgenmsg`.
const SUBHEADER: usize = 4;
/// `NFTA_TABLE_NAME`, `NFTA_CHAIN_TABLE`, `NFTA_RULE_TABLE` and others.
const TABLE: u16 = 1;
