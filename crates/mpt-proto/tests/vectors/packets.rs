//! Inner packets with correct lengths and checksums.

/// Fields that differ between two packets of a flow.
#[derive(Clone, Copy)]
pub struct Fields {
    pub v4: bool,
    pub id: u16,
    pub sequence: u32,
    pub acknowledged: u32,
    pub window: u16,
    pub timestamps: Option<(u32, u32)>,
}

/// A TCP segment with ACK and PSH set.
pub fn tcp(fields: &Fields, payload: &[u8]) -> Vec<u8> {
    let mut segment =
        [&[0xc3, 0x50, 0x01, 0xbb][..], &fields.sequence.to_be_bytes(), &fields.acknowledged.to_be_bytes()].concat();
    segment.extend([if fields.timestamps.is_some() { 0x80 } else { 0x50 }, 0x18]);
    segment.extend(fields.window.to_be_bytes());
    segment.extend([0; 4]);
    if let Some((value, echo)) = fields.timestamps {
        segment.extend([1, 1, 8, 10]);
        segment.extend([value.to_be_bytes(), echo.to_be_bytes()].concat());
    }
    segment.extend(payload);
    network(fields, 6, 16, segment)
}

/// A UDP datagram.
pub fn udp(fields: &Fields, payload: &[u8]) -> Vec<u8> {
    let len = (8 + payload.len()) as u16;
    let segment = [&[0xc3, 0x50, 0x00, 0x35][..], &len.to_be_bytes(), &[0, 0], payload].concat();
    network(fields, 17, 6, segment)
}

/// Puts a network header in front, and the checksum into the segment.
fn network(fields: &Fields, protocol: u8, checksum_at: usize, mut segment: Vec<u8>) -> Vec<u8> {
    let len = segment.len() as u16;
    let addresses = if fields.v4 {
        [[10, 77, 0, 1], [10, 77, 0, 2]].concat()
    } else {
        let host = |last| [&[0xfd, 0x77][..], &[0; 13], &[last]].concat();
        [host(1), host(2)].concat()
    };
    let pseudo = [&addresses[..], &[0, protocol], &len.to_be_bytes(), &segment].concat();
    let sum = checksum(&pseudo);
    segment[checksum_at..checksum_at + 2].copy_from_slice(&sum.to_be_bytes());
    let mut header = if fields.v4 {
        let mut header =
            [&[0x45, 0][..], &(20 + len).to_be_bytes(), &fields.id.to_be_bytes(), &[0x40, 0, 64, protocol, 0, 0]]
                .concat();
        header.extend(&addresses);
        let sum = checksum(&header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        header
    } else {
        [&[0x60, 0, 0, 0][..], &len.to_be_bytes(), &[protocol, 64], &addresses].concat()
    };
    header.extend(segment);
    header
}

/// The Internet checksum (RFC 1071).
pub fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
