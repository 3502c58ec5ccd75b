//! Netlink sockets: requests with their answers, and the frames of a datagram.

use std::io;

use netlink_packet_core::{
    ErrorMessage, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader, NetlinkMessage, NetlinkPayload, NlasIterator,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

use crate::Error;

/// A socket for requests, one at a time.
#[derive(Debug)]
pub struct Channel {
    socket: Socket,
    sequence: u32,
}

/// The kernel's error for a request, with its extended message if there is one.
#[derive(Debug)]
pub struct RequestError {
    cause: io::Error,
    message: Option<String>,
}

/// One frame of a datagram.
pub type Frame = NetlinkMessage<RouteNetlinkMessage>;

impl Channel {
    /// Opens a socket with extended error messages.
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        // Since Linux 4.12; older kernels report an error number only.
        let _ = socket.set_ext_ack(true).and_then(|()| socket.set_cap_ack(true));
        Ok(Self { socket, sequence: 0 })
    }

    /// Sends a request and collects the answers, up to the acknowledgement or the end of the list.
    pub fn exchange(
        &mut self,
        request: RouteNetlinkMessage,
        flags: u16,
    ) -> Result<Vec<RouteNetlinkMessage>, RequestError> {
        self.send(request, flags)?;
        let mut answers = Vec::new();
        loop {
            let (datagram, _) = self.socket.recv_from_full()?;
            for frame in frames(&datagram) {
                let (header, payload) = match frame {
                    Ok(frame) => frame.into_parts(),
                    // A link whose name is not UTF-8, for example, does not hide the others.
                    Err(error) if error.kind() == io::ErrorKind::InvalidData => continue,
                    Err(error) => return Err(error.into()),
                };
                if header.sequence_number != self.sequence {
                    continue; // the rest of an abandoned answer
                }
                match payload {
                    NetlinkPayload::InnerMessage(answer) => answers.push(answer),
                    NetlinkPayload::Error(error) if error.code.is_some() => return Err(RequestError::from(error)),
                    NetlinkPayload::Error(_) | NetlinkPayload::Done(_) => return Ok(answers),
                    _ => {}
                }
            }
        }
    }

    fn send(&mut self, request: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(request));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send_to(&bytes, &SocketAddr::new(0, 0), 0).map(drop)
    }
}

/// Returns the frames of a datagram. A frame that cannot be parsed yields an error, and the next ones follow.
pub fn frames(datagram: &[u8]) -> impl Iterator<Item = io::Result<Frame>> {
    slices(datagram).map(|frame| frame.and_then(deserialize))
}

/// Returns the bytes of each frame of a datagram.
pub fn slices(datagram: &[u8]) -> impl Iterator<Item = io::Result<&[u8]>> {
    let mut remaining = datagram;
    std::iter::from_fn(move || {
        let (length, _) = remaining.split_first_chunk()?;
        let length = usize::try_from(u32::from_ne_bytes(*length)).ok().filter(|length| *length >= HEADER);
        let Some(frame) = length.and_then(|length| remaining.get(..length)) else {
            remaining = &[];
            return Some(Err(io::Error::from(io::ErrorKind::UnexpectedEof)));
        };
        remaining = remaining.get(frame.len().next_multiple_of(4)..).unwrap_or_default();
        Some(Ok(frame))
    })
}

/// Length of a `struct nlmsghdr`.
pub const HEADER: usize = 16;

/// `NLMSGERR_ATTR_MSG`: the extended error message.
const ATTR_MSG: u16 = 1;

fn deserialize<T: NetlinkDeserializable>(frame: &[u8]) -> io::Result<NetlinkMessage<T>> {
    NetlinkMessage::deserialize(frame).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))
}

impl RequestError {
    /// Returns true if the cause is one of these error numbers.
    pub fn is_errno(&self, errnos: &[i32]) -> bool {
        self.cause.raw_os_error().is_some_and(|errno| errnos.contains(&errno))
    }

    /// Converts to the error of an operation.
    pub fn into_error(self, what: impl Into<String>) -> Error {
        Error::new(what, self.cause).with_detail(self.message)
    }
}

impl From<io::Error> for RequestError {
    fn from(cause: io::Error) -> Self {
        Self { cause, message: None }
    }
}

/// The attributes follow the header of the request, which the acknowledgement repeats.
impl From<ErrorMessage> for RequestError {
    fn from(error: ErrorMessage) -> Self {
        let attributes = error.header.get(HEADER..).unwrap_or_default();
        let attribute_message =
            NlasIterator::new(attributes).map_while(Result::ok).find(|attribute| attribute.kind() == ATTR_MSG);
        let message = attribute_message.map(|attribute_message| {
            String::from_utf8_lossy(attribute_message.value()).trim_end_matches('\0').to_owned()
        });
        Self { cause: error.to_io(), message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_with_a_wrong_length_is_an_error_and_ends_the_datagram() {
        for length in [0_u32, 15, 17, u32::MAX] {
            let mut datagram = [0; HEADER];
            datagram[..4].copy_from_slice(&length.to_ne_bytes());
            let read: Vec<_> = frames(&datagram).collect();
            assert!(matches!(read[..], [Err(_)]), "length {length}: {read:?}");
        }
        assert_eq!(frames(&[]).count(), 0);
        assert_eq!(frames(&[1, 2, 3]).count(), 0);
    }
}
