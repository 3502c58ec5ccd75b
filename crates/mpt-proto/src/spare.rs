//! Large buffers that are free for the next reads of the TUN device.

/// Buffers of [`COPY_BELOW`] bytes or more. A buffer that is not new needs no zeroing, and is likely in the processor's
/// cache: the last one that came back is used first.
#[derive(Debug, Default)]
pub struct SpareBuffers(Vec<Vec<u8>>);

/// A TUN read shorter than this is copied: the queue's limit counts bytes, and a packet in a buffer of four times its
/// length would use more memory than is counted.
pub(crate) const COPY_BELOW: usize = 16_384;
/// Buffers that are kept between two turns.
const MAX_SPARE: usize = 64;

impl SpareBuffers {
    /// Takes a buffer back. Small ones are freed.
    pub fn put(&mut self, buffer: Vec<u8>) {
        if buffer.len() >= COPY_BELOW {
            self.0.push(buffer);
        }
    }

    /// Replaces `buffer` by another one of its size, and returns it.
    pub fn exchange(&mut self, buffer: &mut Vec<u8>) -> Vec<u8> {
        let size = buffer.len();
        let other = self.0.pop().map(|mut other| {
            other.resize(size, 0);
            other
        });
        std::mem::replace(buffer, other.unwrap_or_else(|| vec![0; size]))
    }

    /// Frees what exceeds the limit.
    pub fn trim(&mut self) {
        self.0.truncate(MAX_SPARE);
    }
}

impl Extend<Vec<u8>> for SpareBuffers {
    fn extend<T: IntoIterator<Item = Vec<u8>>>(&mut self, buffers: T) {
        buffers.into_iter().for_each(|buffer| self.put(buffer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_large_buffers_are_used_again() {
        let mut spare = SpareBuffers::default();
        spare.extend([vec![1; COPY_BELOW - 1], vec![2; COPY_BELOW]]);
        let mut buffer = vec![3; COPY_BELOW];
        assert_eq!(spare.exchange(&mut buffer), [3; COPY_BELOW]);
        assert_eq!(buffer, [2; COPY_BELOW], "not zeroed");
        assert_eq!(spare.exchange(&mut buffer), [2; COPY_BELOW]);
        assert_eq!(buffer, [0; COPY_BELOW], "a new one");
        spare.extend((0..MAX_SPARE + 9).map(|_| vec![0; COPY_BELOW]));
        spare.trim();
        assert_eq!(spare.0.len(), MAX_SPARE);
    }
}
