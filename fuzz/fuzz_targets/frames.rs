//! Frames of any opened datagram: decoding must not panic, and must be inverse to encoding.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mpt_proto::wire::frame::{Frame, Frames, Tlvs, Writer};

fuzz_target!(|body: &[u8]| {
    let frames: Vec<Frame<'_>> = Frames::new(body).map_while(Result::ok).collect();
    let mut slot = vec![0; body.len() + 3 * frames.len()];
    let mut writer = Writer::new(&mut slot);
    let fits = frames.iter().all(|frame| writer.push(frame).is_ok());
    let len = writer.len();
    let again: Vec<Frame<'_>> = Frames::new(&slot[..len]).map_while(Result::ok).collect();
    assert!(!fits || again == frames, "{frames:?} became {again:?}");
    for frame in frames {
        match frame {
            Frame::Ack(ack) => assert!(ack.iter().all(|range| range.start() <= range.end())),
            Frame::Control(values) => {
                assert!(values.map(|(_, value)| value.len()).sum::<usize>() <= body.len());
                for message in values.server_list_messages().flatten() {
                    let encoded = message.to_body();
                    let again = Tlvs::decode(&encoded).expect("one complete value").server_list_messages().next();
                    assert_eq!(again, Some(Ok(message)));
                }
            }
            _ => {}
        }
    }
});
