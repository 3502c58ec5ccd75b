//! Sockets and TUN device of all workers. The first one opens the sockets, as many as there are workers; the others
//! take theirs.

use std::collections::BTreeSet;
use std::net::IpAddr;

use mpt_linux::Error;
use mpt_linux::Tun;
use mpt_proto::path::LinkId;
use mpt_proto::time::Time;

use super::Workers;
use crate::daemon::links::Link;

impl Workers {
    /// As [`Worker::add_link`](crate::daemon::event_loop::Worker::add_link).
    pub fn add_link(&mut self, link: Link) -> Result<(), Error> {
        let id = link.id();
        self.all[0].add_link(link).and_then(|()| self.distribute()).inspect_err(|_| self.close_link(id))
    }

    /// As [`Worker::close_link`](crate::daemon::event_loop::Worker::close_link).
    pub fn close_link(&mut self, id: LinkId) {
        self.all.iter_mut().for_each(|worker| worker.close_link(id));
    }

    /// As [`Worker::rebind_link`](crate::daemon::event_loop::Worker::rebind_link).
    pub fn rebind_link(&mut self, now: Time, id: LinkId, local: IpAddr, interface: Option<u32>) -> Result<(), Error> {
        self.all[0].rebind_link(now, id, local, interface)?;
        self.distribute()?;
        // The others have the new socket, and only notify their peers.
        self.all[1..].iter_mut().try_for_each(|worker| worker.rebind_link(now, id, local, interface))
    }

    /// As [`Worker::is_bound_to`](crate::daemon::event_loop::Worker::is_bound_to).
    pub fn is_bound_to(&self, id: LinkId, local: IpAddr, interface: u32) -> bool {
        self.all[0].is_bound_to(id, local, interface)
    }

    /// As [`Worker::handle_address_gone`](crate::daemon::event_loop::Worker::handle_address_gone).
    pub fn handle_address_gone(&mut self, now: Time, id: LinkId) {
        self.all.iter_mut().for_each(|worker| worker.handle_address_gone(now, id));
    }

    /// As [`Worker::handle_interface_state`](crate::daemon::event_loop::Worker::handle_interface_state).
    pub fn handle_interface_state(&mut self, now: Time, index: u32, name: &str, running: bool) {
        self.all[0].handle_interface_state(now, index, name, running);
        if let Err(error) = self.distribute() {
            tracing::warn!(interface = name, %error, "cannot use the returned interface");
        }
        self.all[1..].iter_mut().for_each(|worker| worker.handle_interface_state(now, index, name, running));
    }

    /// Takes down the links of an interface that is gone.
    pub fn handle_interface_gone(&mut self, now: Time, index: u32) {
        self.handle_interface_state(now, index, "", false);
    }

    /// As [`Worker::take_down_waiting`](crate::daemon::event_loop::Worker::take_down_waiting).
    pub fn take_down_waiting(&mut self, now: Time) {
        self.all.iter_mut().for_each(|worker| worker.take_down_waiting(now));
    }

    /// As [`Worker::on_address_added`](crate::daemon::event_loop::Worker::on_address_added).
    pub fn on_address_added(&mut self, index: u32, address: IpAddr) -> bool {
        self.all.iter_mut().fold(false, |any, worker| any | worker.on_address_added(index, address))
    }

    /// As [`Worker::interfaces`](crate::daemon::event_loop::Worker::interfaces).
    pub fn interfaces(&self) -> BTreeSet<u32> {
        self.all[0].interfaces()
    }

    /// Sends what all endpoints have.
    pub fn transmit(&mut self, now: Time) {
        self.all.iter_mut().for_each(|worker| worker.transmit(now));
    }

    /// Returns true if the TUN device was removed.
    pub fn is_tun_removed(&self) -> bool {
        self.all.iter().any(|worker| worker.is_tun_removed())
    }

    /// Returns the TUN device: its first queue.
    pub fn tun(&self) -> &Tun {
        self.all[0].tun()
    }

    /// Returns the TUN device's interface index.
    pub fn tun_index(&self) -> u32 {
        self.tun_index
    }

    /// Passes the sockets that the first worker has opened for others to them.
    fn distribute(&mut self) -> Result<(), Error> {
        for siblings in self.all[0].take_siblings() {
            self.all[1..].iter_mut().zip(siblings).try_for_each(|(worker, sibling)| worker.add_sibling(sibling))?;
        }
        Ok(())
    }
}
