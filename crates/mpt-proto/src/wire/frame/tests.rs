use proptest::prelude::*;

use super::*;
use crate::id::PathSeq;

fn read(body: &[u8]) -> Vec<Result<Frame<'_>, MalformedFrame>> {
    Frames::new(body).collect()
}

const FORMS: [DataForm; 3] = [DataForm::Complete, DataForm::OffersContext, DataForm::PartialChecksum];

/// Makes a frame of any kind from these values.
fn build<'a>(kind: u8, n: [u32; 3], bytes: &'a [u8], text: &'a str, buffer: &'a mut [u8; ACK_RANGES_LEN]) -> Frame<'a> {
    let (short, id) = (n[0] as u16, n[1] as u8);
    match kind {
        0 => {
            let header = DataHeader { bucket: short, sequence: n[1], form: FORMS[n[2] as usize % FORMS.len()] };
            Frame::Data(DataFrame { header, packet: bytes })
        }
        1 => {
            let (largest, ranges) =
                AckRanges::encode([u64::from(n[0])..=u64::from(n[0]) + u64::from(n[1])], buffer).unwrap();
            Frame::Ack(AckFrame {
                path: PathTag::from_byte(id),
                largest,
                delay: n[1],
                received: n[2],
                ce: n[0],
                ranges,
            })
        }
        2 => Frame::Skip(SkipFrame { bucket: short, from: n[1], to: n[2] }),
        3 => Frame::Repair(RepairFrame { span: short >> 6, seed: id >> 2, symbol: bytes }),
        4 => Frame::Path(PathFrame::Challenge((u64::from(n[0]) << 32 | u64::from(n[1])).to_be_bytes())),
        5 => Frame::Path(PathFrame::Response((u64::from(n[0]) << 32 | u64::from(n[1])).to_be_bytes())),
        6 => {
            let all = [
                PathUsage::Available,
                PathUsage::Standby,
                PathUsage::Draining,
                PathUsage::Overflow,
                PathUsage::Reserve,
            ];
            let status = all[n[0] as usize % all.len()];
            Frame::Path(PathFrame::Status { path: PathTag::from_byte(id), status, order: n[2] })
        }
        7 => Frame::Addr(AddrFrame::Add { id, ip: IpAddr::from(n[2].to_be_bytes()), port: short }),
        8 => Frame::Addr(AddrFrame::Add { id, ip: IpAddr::from(u128::from(n[2]).to_be_bytes()), port: short }),
        9 => Frame::Addr(AddrFrame::Remove { id }),
        10 => Frame::Probe(bytes.len()),
        11 => Frame::Compressed(CompressedFrame { bucket: short, sequence: n[1], reference: id, rest: bytes }),
        12 => Frame::Context(ContextFrame::Known { bucket: short, sequence: n[1] }),
        13 => Frame::Context(ContextFrame::Unknown { bucket: short, reference: id }),
        14 => Frame::Control(Tlvs::decode(&[9, 0, 2, 1, 2, 7, 0, 0]).unwrap()),
        _ => Frame::Close(CloseFrame { code: short, text }),
    }
}

fn parts() -> impl Strategy<Value = Vec<(u8, [u32; 3], Vec<u8>, String)>> {
    prop::collection::vec((0..16u8, any::<[u32; 3]>(), prop::collection::vec(any::<u8>(), 0..200), ".{0,20}"), 1..6)
}

/// Writes the frames; the last one without a length.
fn written(frames: &[Frame<'_>]) -> Vec<u8> {
    let mut slot = vec![0; 4096];
    let mut writer = Writer::new(&mut slot);
    let (last, others) = frames.split_last().unwrap();
    others.iter().for_each(|frame| writer.push(frame).unwrap());
    let len = writer.finish(last).unwrap();
    slot.truncate(len);
    slot
}

proptest! {
    #[test]
    fn frames_decode_to_what_was_encoded_and_no_truncation_panics(parts in parts()) {
        let mut buffers = vec![[0; ACK_RANGES_LEN]; parts.len()];
        let frames: Vec<_> = parts
            .iter()
            .zip(&mut buffers)
            .map(|((kind, n, bytes, text), buffer)| build(*kind, *n, bytes, text, buffer))
            .collect();
        let body = written(&frames);
        prop_assert_eq!(read(&body), frames.iter().copied().map(Ok).collect::<Vec<_>>());
        for len in 0..body.len() {
            let cut = read(&body[..len]);
            prop_assert!(cut.len() <= frames.len());
            prop_assert!(cut.iter().rev().skip(1).all(Result::is_ok), "no frame follows a malformed one");
        }
    }

    #[test]
    fn reading_any_bytes_never_panics(body in prop::collection::vec(any::<u8>(), 0..300)) {
        let frames = read(&body);
        prop_assert!(frames.iter().rev().skip(1).all(Result::is_ok));
    }

    #[test]
    fn a_frame_that_does_not_fit_writes_nothing(parts in parts(), len in 0..64usize) {
        let mut slot = vec![0; len];
        let mut writer = Writer::new(&mut slot);
        for (kind, n, bytes, text) in &parts {
            let (before, mut buffer) = (writer.len(), [0; ACK_RANGES_LEN]);
            if writer.push(&build(*kind, *n, bytes, text, &mut buffer)).is_err() {
                prop_assert_eq!(writer.len(), before);
            }
        }
        let len = writer.len();
        prop_assert!(read(&slot[..len]).iter().all(Result::is_ok));
    }
}

#[test]
fn a_writer_counts_the_bytes_written_and_those_left() {
    let (mut slot, remove) = ([0; 20], Frame::Addr(AddrFrame::Remove { id: 5 }));
    let mut writer = Writer::new(&mut slot);
    assert_eq!((writer.len(), writer.remaining(), writer.is_empty()), (0, 20, true));
    // Type, length and a body of two bytes.
    writer.push(&remove).unwrap();
    assert_eq!((writer.len(), writer.remaining(), writer.is_empty()), (5, 15, false));
    assert_eq!(writer.push(&Frame::Probe(13)), Err(Full));
    assert_eq!((writer.len(), writer.remaining()), (5, 15));
    writer.push(&Frame::Probe(12)).unwrap();
    assert_eq!((writer.len(), writer.remaining()), (20, 0));
    assert_eq!(writer.push(&remove), Err(Full));
    assert_eq!(read(&slot), [Ok(remove), Ok(Frame::Probe(12))]);
}

#[test]
fn a_single_packet_has_seven_bytes_of_overhead() {
    let header = DataHeader { bucket: 0x0102, sequence: 0x0304_0506, form: DataForm::Complete };
    let frame = Frame::Data(DataFrame { header, packet: b"packet" });
    let body = written(&[frame]);
    assert_eq!(body, b"\x81\x01\x02\x03\x04\x05\x06packet");
    assert_eq!(body[..DATA_HEADER], header.encode_last());
}

#[test]
fn a_context_offer_adds_no_byte_and_a_compressed_frame_adds_one() {
    let header = DataHeader { bucket: 0x0102, sequence: 0x0304_0506, form: DataForm::OffersContext };
    let body = written(&[Frame::Data(DataFrame { header, packet: b"packet" })]);
    assert_eq!(body, b"\xC1\x01\x02\x03\x04\x05\x06packet");
    assert_eq!(body[..DATA_HEADER], header.encode_last());
    let partial = DataHeader { form: DataForm::PartialChecksum, ..header };
    assert_eq!(partial.encode_last(), *b"\x8C\x01\x02\x03\x04\x05\x06");
    let compressed = CompressedFrame { bucket: 0x0102, sequence: 0x0304_0506, reference: 7, rest: b"rest" };
    let body = written(&[Frame::Compressed(compressed)]);
    assert_eq!(body, b"\x8A\x01\x02\x03\x04\x05\x06\x07rest");
    assert_eq!(body[..COMPRESSED_HEADER], compressed.encode_last());
}

#[test]
fn unknown_frames_are_skipped() {
    let known = Frame::Addr(AddrFrame::Remove { id: 5 });
    let (unknown_type, flagged_skip) = ([0x3F, 0, 2, 1, 2], [SKIP | FLAG, 0, 1, 0]);
    let (unknown_path, unknown_status, unknown_addr) =
        ([PATH, 0, 1, 9], [PATH, 0, 7, 2, 0, 9, 0, 0, 0, 0], [ADDR, 0, 2, 9, 9]);
    let unknown_context = [CONTEXT, 0, 2, 9, 9];
    let body = [
        &unknown_type[..],
        &flagged_skip,
        &unknown_path,
        &unknown_status,
        &unknown_addr,
        &unknown_context,
        &written(&[known]),
    ]
    .concat();
    assert_eq!(read(&body), [Ok(known)]);
    assert_eq!(read(&[0x7F | LAST, 1, 2, 3]), []);
}

#[test]
fn a_body_of_the_wrong_length_ends_the_datagram() {
    let after = written(&[Frame::Addr(AddrFrame::Remove { id: 5 })]);
    for wrong in [
        &[DATA, 0, 5, 0, 0, 0, 0, 0][..],
        &[SKIP, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[SKIP, 0, 11, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[PATH, 0, 0],
        &[PATH, 0, 8, CHALLENGE, 0, 0, 0, 0, 0, 0, 0],
        &[ADDR, 0, 9, ADD, 0, 0, 0, 1, 2, 3, 4, 5],
        &[ADDR, 0, 3, REMOVE, 0, 0],
        &[COMPRESSED, 0, 6, 0, 0, 0, 0, 0, 0],
        &[CONTEXT, 0, 6, KNOWN, 0, 0, 0, 0, 0],
        &[CONTEXT, 0, 5, UNKNOWN, 0, 0, 0, 0],
        &[CONTROL, 0, 4, 1, 0, 2, 0],
        &[CLOSE, 0, 3, 0, 0, 0xFF],
        &[ACK, 0, 1, 0],
        &[PROBE, 0xFF, 0xFF],
    ] {
        assert_eq!(read(&[wrong, &after].concat()), [Err(MalformedFrame)], "{wrong:?}");
    }
}

#[test]
fn control_yields_its_values_in_order() {
    let tlvs = Tlvs::decode(&[9, 0, 2, 1, 2, 7, 0, 0]).unwrap();
    assert_eq!(tlvs.collect::<Vec<_>>(), [(9, &[1, 2][..]), (7, &[])]);
}

#[test]
fn an_ack_carries_the_state_of_one_path() {
    let mut buffer = [0; ACK_RANGES_LEN];
    let (largest, ranges) = AckRanges::encode([90..=100, 80..=85], &mut buffer).unwrap();
    let ack = AckFrame { path: PathTag::from_byte(17), largest, delay: 250, received: 4_000_000_000, ce: 3, ranges };
    let body = written(&[Frame::Ack(ack)]);
    assert_eq!(body.len(), 1 + 21 + 3);
    let Ok(Frame::Ack(got)) = read(&body)[0] else { panic!("not an ACK") };
    assert_eq!((got.largest, got.iter().collect::<Vec<_>>()), (PathSeq(100), vec![90..=100, 80..=85]));
}
