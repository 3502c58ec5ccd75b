//! A TUN device: reads and writes IP packets, as large as the kernel's segmentation offload makes them.
//!
//! With offload, a `virtio_net_hdr` before every packet describes its pending work ([`Offload`]): one read returns up
//! to 64 KiB of one TCP or UDP flow, one write delivers as much. The header has its own element of a `readv`/`writev`,
//! so the packet is never moved. Without offload there is no header, and each call reads or writes one finished packet
//! of at most the MTU.
//!
//! | kernel       | granted offload |
//! |--------------|-----------------|
//! | 6.2 and up   | checksum, TSO for IPv4 and IPv6, USO |
//! | older        | checksum, TSO for IPv4 and IPv6 |
//! | none of them | finished packets only on read; large packets are still taken on write |
//!
//! The kernel removes the device, its routes and its addresses with the last descriptor: a crash leaves nothing behind.
//! [`netlink`](crate::netlink) sets addresses, MTU and queue length.
//!
//! <https://docs.kernel.org/networking/tuntap.html>; `include/uapi/linux/virtio_net.h`

mod header;

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use mpt_proto::packet::Offload;
use nix::libc;
use nix::net::if_::if_nametoindex;

use crate::Error;
use crate::sys;

/// An open TUN device, up or down. Dropping it removes the device unless it is persistent.
#[derive(Debug)]
pub struct Tun {
    file: File,
    name: String,
    index: u32,
    features: Features,
}

/// The offload features that the kernel granted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Packets carry an [`Offload`]; writes may be large regardless of the two flags below.
    pub offload: bool,
    /// Reads return partial checksums and large TCP packets.
    pub tso: bool,
    /// Reads return large UDP packets.
    pub uso: bool,
}

/// `/dev/net/tun`, open. A host without udev permits only root to open it.
#[derive(Debug)]
pub struct CloneDevice(File);

impl CloneDevice {
    /// Opens it.
    ///
    /// # Errors
    /// It does not exist, or this user may not open it.
    pub fn open() -> Result<Self, Error> {
        let device = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun");
        device.map(Self).map_err(|cause| {
            let hint = open_hint(&cause);
            Error::new("open /dev/net/tun", cause).with_hint(hint)
        })
    }
}

impl Tun {
    /// Opens the device `name`, which is created if it does not exist; a name with `%d` gets the first free number.
    ///
    /// Fails without CAP_NET_ADMIN, without `/dev/net/tun`, if another process holds the device, or if the name belongs
    /// to another kind of interface.
    pub fn open(name: &str, offload: bool) -> Result<Self, Error> {
        Self::attach(CloneDevice::open()?, name, offload)
    }

    /// Does the same with an open `/dev/net/tun`.
    pub fn attach(device: CloneDevice, name: &str, offload: bool) -> Result<Self, Error> {
        Self::attach_with(device, name, offload, 0)
    }

    /// Opens a queue of the device `name`, which is created with the first one. The kernel passes a packet to the queue
    /// to which the last packet of the other direction of its flow was written, or to one by a hash of the flow. Fails
    /// as [`Self::open`], and if the device has one queue only.
    pub fn attach_queue(device: CloneDevice, name: &str, offload: bool) -> Result<Self, Error> {
        Self::attach_with(device, name, offload, libc::IFF_MULTI_QUEUE)
    }

    fn attach_with(
        CloneDevice(file): CloneDevice,
        name: &str,
        offload: bool,
        queues: libc::c_int,
    ) -> Result<Self, Error> {
        let what = format!("open TUN device {name}");
        let fail = |cause: io::Error| {
            let hint = open_hint(&cause);
            Error::new(what.as_str(), cause).with_hint(hint)
        };
        let flags = libc::IFF_TUN | libc::IFF_NO_PI | queues | if offload { libc::IFF_VNET_HDR } else { 0 };
        let name = sys::tun::attach(file.as_fd(), name, flags).map_err(fail)?;
        let features = if offload { negotiate(&file).map_err(fail)? } else { Features::default() };
        let index = if_nametoindex(name.as_str()).map_err(|errno| fail(errno.into()))?;
        Ok(Self { file, name, index, features })
    }

    /// Takes over the device of an earlier process, with its addresses, routes and waiting packets, and with one queue
    /// or several, of which this is one. Returns `None` if the descriptor belongs to no device of this name and kind.
    ///
    /// # Errors
    /// The kernel refused the offloads.
    pub fn take_over(device: OwnedFd, name: &str, offload: bool, has_queues: bool) -> Result<Option<Self>, Error> {
        let queues = if has_queues { libc::IFF_MULTI_QUEUE } else { 0 };
        let wanted = libc::IFF_TUN | queues | if offload { libc::IFF_VNET_HDR } else { 0 };
        let kind = libc::IFF_TUN | libc::IFF_VNET_HDR | libc::IFF_MULTI_QUEUE;
        let is_wanted = |(found, flags): (String, libc::c_int)| found == name && flags & kind == wanted;
        // It fails for other files, and after the device was removed.
        if !sys::tun::device_of(device.as_fd()).is_ok_and(is_wanted) {
            return Ok(None);
        }
        let file = File::from(device);
        let fail = |cause: io::Error| Error::new(format!("take over TUN device {name}"), cause);
        let features = if offload { negotiate(&file).map_err(fail)? } else { Features::default() };
        let index = if_nametoindex(name).map_err(|errno| fail(errno.into()))?;
        Ok(Some(Self { file, name: name.to_owned(), index, features }))
    }

    /// Reads one packet into `buffer`, which has [`READ_BUFFER`] bytes, or the MTU without offload: a longer packet is
    /// truncated. Returns `None` if there is nothing to read.
    ///
    /// `InvalidData` means that one packet was lost because its header contradicts it; the next read may succeed.
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<Option<(Offload, usize)>> {
        if !self.features.offload {
            return Ok(unless_blocked(self.file.read(buffer))?.map(|len| (Offload::default(), len)));
        }
        let mut bare = [0; header::LEN];
        let parts = &mut [IoSliceMut::new(&mut bare), IoSliceMut::new(buffer)];
        let Some(read) = unless_blocked(self.file.read_vectored(parts))? else { return Ok(None) };
        let len = read.saturating_sub(header::LEN);
        let offload = header::decode(&bare, &buffer[..len])?;
        Ok(Some((offload, len)))
    }

    /// Writes one packet. Returns false if the kernel has no room for it; nothing was written then.
    ///
    /// `EIO` means that the device is down, `EINVAL` that `offload` contradicts the packet.
    pub fn write(&mut self, offload: Offload, packet: &[u8]) -> io::Result<bool> {
        self.write_parts(offload, &[packet])
    }

    /// Writes one packet from at most [`MAX_PARTS`] parts; otherwise as [`Tun::write`].
    pub fn write_parts(&mut self, offload: Offload, packet: &[&[u8]]) -> io::Result<bool> {
        if packet.len() > MAX_PARTS {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "packet has too many parts"));
        }
        let bare = header::encode(offload);
        let mut parts = [IoSlice::new(&[]); 1 + MAX_PARTS];
        parts[0] = IoSlice::new(&bare);
        for (to, from) in parts[1..].iter_mut().zip(packet) {
            *to = IoSlice::new(from);
        }
        let parts = &parts[self.first_part(offload)?..=packet.len()];
        Ok(unless_blocked(self.file.write_vectored(parts))?.is_some())
    }

    /// Returns the device's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the device's interface index.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Returns the granted offload features.
    pub fn features(&self) -> Features {
        self.features
    }

    /// Returns the index of the first part to write: 0 is the header. Without offload only finished packets are valid.
    fn first_part(&self, offload: Offload) -> io::Result<usize> {
        match (self.features.offload, offload == Offload::default()) {
            (true, _) => Ok(0),
            (false, true) => Ok(1),
            (false, false) => {
                Err(io::Error::new(io::ErrorKind::InvalidInput, "partial checksum or segmentation without offload"))
            }
        }
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn negotiate(file: &File) -> io::Result<Features> {
    sys::tun::set_header_size(file.as_fd(), header::LEN as i32)?;
    let tso = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
    let uso = libc::TUN_F_USO4 | libc::TUN_F_USO6;
    let granted = |features| sys::tun::set_offload(file.as_fd(), features).is_ok();
    let all = granted(tso | uso);
    Ok(Features { offload: true, tso: all || granted(tso), uso: all })
}

fn unless_blocked(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(len) => Ok(Some(len)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

fn open_hint(cause: &io::Error) -> Option<&'static str> {
    match cause.raw_os_error()? {
        libc::EBUSY => Some("already in use: another process holds this device; stop it or use another name"),
        libc::EINVAL => Some(
            "an interface name has 1 to 15 characters, and must not belong to another kind of interface or a multi-queue device",
        ),
        libc::ENOENT | libc::ENODEV | libc::ENXIO => {
            Some("no /dev/net/tun: `modprobe tun`; in a container, pass the device in (`--device /dev/net/tun`)")
        }
        _ => None,
    }
}

/// Maximum number of parts of one packet: the headers, and one payload for each segment of the largest GSO batch
/// (`UDP_MAX_SEGMENTS`).
pub const MAX_PARTS: usize = 1 + 128;
/// Large enough for any packet: the largest length that an IP header can encode.
pub const READ_BUFFER: usize = 65_536;
