//! A TUN device: IP packets from and to the kernel, as large as the kernel will make them.
//!
//! With offload, every packet is preceded by a `virtio_net_hdr` that says what is left undone in it ([`Offload`]): one
//! read brings up to 64 KiB of one TCP or UDP flow, one write delivers as much. The header travels in its own element of
//! a `readv`/`writev`, so the packet is never moved to make room for it. Without offload the slow twin reads and writes
//! one finished packet of at most the MTU per call and there is no header.
//!
//! | kernel       | what is granted |
//! |--------------|-----------------|
//! | 6.2 and up   | checksum, TSO for IPv4 and IPv6, USO |
//! | older        | checksum, TSO for IPv4 and IPv6 |
//! | none of them | finished packets only on read; large packets are still taken on write |
//!
//! The device disappears with the last descriptor, routes and addresses with it: a crash leaves nothing behind.
//! Addresses, MTU and queue length are [`netlink`](crate::netlink)'s.
//!
//! <https://docs.kernel.org/networking/tuntap.html>; `include/uapi/linux/virtio_net.h`

mod header;

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use mpt_proto::packet::Offload;
use nix::libc;
use nix::net::if_::if_nametoindex;

use crate::Error;
use crate::sys;

/// An open TUN device, up or not. Dropping it removes the device unless somebody made it persistent.
#[derive(Debug)]
pub struct Tun {
    file: File,
    name: String,
    index: u32,
    features: Features,
}

/// What the kernel granted when the device was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Packets carry an [`Offload`]; writes may be large whatever the two flags below say.
    pub offload: bool,
    /// Reads bring unfinished checksums and large TCP packets.
    pub tso: bool,
    /// Reads bring large UDP packets.
    pub uso: bool,
}

/// The most parts of one packet: the headers, and the payloads of the longest run of datagrams that the kernel takes or
/// brings in one call (`UDP_MAX_SEGMENTS`).
pub const MAX_PARTS: usize = 1 + 128;

/// Room for any packet that a read can bring: an IP packet with the largest length its header can state.
pub const READ_BUFFER: usize = 65_536;

impl Tun {
    /// Opens the device `name`, which is made if there is none; a name with `%d` takes the first free number.
    ///
    /// Fails without CAP_NET_ADMIN, without `/dev/net/tun`, when another process holds the device, and when the name
    /// belongs to another kind of interface.
    pub fn open(name: &str, offload: bool) -> Result<Self, Error> {
        let what = format!("open TUN device {name}");
        let fail = |cause: io::Error| {
            let hint = open_hint(&cause);
            Error::new(what.as_str(), cause).with_hint(hint)
        };
        let file = open_clone_device().map_err(fail)?;
        let flags = libc::IFF_TUN | libc::IFF_NO_PI | if offload { libc::IFF_VNET_HDR } else { 0 };
        let name = sys::tun::attach(file.as_fd(), name, flags).map_err(fail)?;
        let features = if offload { negotiate(&file).map_err(fail)? } else { Features::default() };
        let index = if_nametoindex(name.as_str()).map_err(|errno| fail(errno.into()))?;
        Ok(Self { file, name, index, features })
    }

    /// Reads one packet into `buffer`, which has room for [`READ_BUFFER`] bytes, or for the MTU without offload: the
    /// rest of a longer packet is lost. `None` when there is nothing to read.
    ///
    /// `InvalidData` means that one packet was lost to a header which contradicts it; the next read may succeed.
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

    /// Writes one packet; false when the kernel has no room for it, and then nothing was written.
    ///
    /// `EIO` means that the device is down, `EINVAL` that `offload` contradicts the packet.
    pub fn write(&mut self, offload: Offload, packet: &[u8]) -> io::Result<bool> {
        self.write_parts(offload, &[packet])
    }

    /// Writes one packet that stands in at most [`MAX_PARTS`] parts; otherwise as [`Tun::write`].
    pub fn write_parts(&mut self, offload: Offload, packet: &[&[u8]]) -> io::Result<bool> {
        if packet.len() > MAX_PARTS {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a packet in too many parts"));
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

    /// The device's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The device's interface index.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// What the kernel granted.
    pub fn features(&self) -> Features {
        self.features
    }

    /// Where the packet's parts begin: after the header if there is one. The slow twin takes finished packets only.
    fn first_part(&self, offload: Offload) -> io::Result<usize> {
        match (self.features.offload, offload == Offload::default()) {
            (true, _) => Ok(0),
            (false, true) => Ok(1),
            (false, false) => Err(io::Error::new(io::ErrorKind::InvalidInput, "an unfinished packet without offload")),
        }
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn open_clone_device() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")
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
        libc::EBUSY => Some("already in use: another process holds this device; stop it or take another name"),
        libc::EINVAL => Some(
            "an interface name has 1 to 15 characters, and must not belong to another kind of interface or to a multi-queue device",
        ),
        libc::ENOENT | libc::ENODEV | libc::ENXIO => {
            Some("no /dev/net/tun: `modprobe tun`; in a container, pass the device in (`--device /dev/net/tun`)")
        }
        _ => None,
    }
}
