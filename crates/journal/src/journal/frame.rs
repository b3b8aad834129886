//! The bytes of a journal: a magic, then frames, each with a length, its complement, a checksum and
//! a JSON document, then zeros up to the file's end, which is a multiple of [`CHUNK_BYTES`]. This
//! shows whether the last frame was torn because its writer was killed, which loses nothing that
//! anything depends on, or whether the file is damaged: cut off, or changed in the middle.

/// The start of every journal; the digit is the version of the frame format.
pub const MAGIC: [u8; 8] = *b"russetJ1";
/// The file grows in steps of this size: space for a dozen operations that exists even when the
/// file system is full.
pub const CHUNK_BYTES: u64 = 64 * 1024;
/// The largest document: the largest configuration that a plugin reads, plus JSON's escaping of it.
pub const DOCUMENT_MAX_BYTES: usize = 2 * 1024 * 1024;
/// Length, its complement, and the checksum.
pub const HEAD_BYTES: usize = 12;

/// The content of a file.
#[derive(Debug, PartialEq, Eq)]
pub struct Scan<'a> {
    pub documents: Vec<&'a [u8]>,
    /// Where the next frame goes.
    pub end: usize,
    pub tail: Tail,
}

/// What follows the last valid frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Tail {
    Clean,
    /// A frame whose writer was killed while writing.
    Torn,
    /// Other bytes: frames may be missing, or the file was cut off.
    Damaged,
}

/// CRC-32 as in IEEE 802.3: the remainder for each byte.
const TABLE: [u32; 256] = table();

#[allow(
    clippy::indexing_slicing,
    reason = "the index is below 256, the array's length; constant code has no `get_mut`"
)]
const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

/// CRC-32 of the concatenated pieces.
fn crc32(pieces: [&[u8]; 2]) -> u32 {
    // A byte has 256 values, and the table an entry for each.
    let entry = |byte: u8| TABLE.get(usize::from(byte)).copied().unwrap_or_default();
    let step = |crc: u32, byte: &u8| crc >> 8 ^ entry(crc as u8 ^ byte);
    !pieces.into_iter().flatten().fold(!0, step)
}

/// Appends a frame. A document must not end with a zero byte; JSON never does.
pub fn push(out: &mut Vec<u8>, document: &[u8]) {
    let length = u32::try_from(document.len()).unwrap_or(u32::MAX);
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&(!length).to_le_bytes());
    out.extend_from_slice(&crc32([&length.to_le_bytes(), document]).to_le_bytes());
    out.extend_from_slice(document);
}

/// Reads a file. None if it is not a journal, or one of an unknown format.
pub fn scan(bytes: &[u8]) -> Option<Scan<'_>> {
    let mut rest = bytes.strip_prefix(&MAGIC)?;
    let mut documents = Vec::new();
    loop {
        let end = bytes.len() - rest.len();
        match frame(rest) {
            Some((document, after)) => {
                documents.push(document);
                rest = after;
            }
            None => return Some(Scan { documents, end, tail: tail(bytes, rest) }),
        }
    }
}

fn frame(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let size = length(bytes)?;
    let (head, rest) = bytes.split_at_checked(HEAD_BYTES)?;
    let (document, after) = rest.split_at_checked(size)?;
    let (length, sum) = (head.first_chunk::<4>()?, head.last_chunk::<4>()?);
    (*sum == crc32([length, document]).to_le_bytes()).then_some((document, after))
}

/// The length in a frame's head, if it is valid.
fn length(head: &[u8]) -> Option<usize> {
    let (length, rest) = head.split_first_chunk::<4>()?;
    let length = u32::from_le_bytes(*length);
    let good = rest.first_chunk::<4>().is_some_and(|it| u32::from_le_bytes(*it) == !length);
    usize::try_from(length).ok().filter(|length| good && (1..=DOCUMENT_MAX_BYTES).contains(length))
}

fn tail(bytes: &[u8], rest: &[u8]) -> Tail {
    if !(bytes.len() as u64).is_multiple_of(CHUNK_BYTES) {
        return Tail::Damaged;
    }
    let Some(last) = rest.iter().rposition(|byte| *byte != 0) else { return Tail::Clean };
    // A killed writer leaves the beginning of one frame in a file that has space for all of it. A
    // complete frame with a wrong checksum was changed later, and one without space was cut off.
    let torn = match length(rest) {
        Some(length) => last + 1 < HEAD_BYTES + length && HEAD_BYTES + length <= rest.len(),
        None => last < 8 && HEAD_BYTES <= rest.len(),
    };
    if torn { Tail::Torn } else { Tail::Damaged }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENTS: [&[u8]; 3] = [b"{\"one\":1}", b"{}", b"{\"three\":\"drei\"}"];

    fn padded(mut bytes: Vec<u8>) -> Vec<u8> {
        bytes.resize(CHUNK_BYTES as usize, 0);
        bytes
    }

    /// A journal's bytes without padding, and where each frame begins.
    fn journal() -> (Vec<u8>, Vec<usize>) {
        let (mut bytes, mut starts) = (MAGIC.to_vec(), Vec::new());
        for document in DOCUMENTS {
            starts.push(bytes.len());
            push(&mut bytes, document);
        }
        (bytes, starts)
    }

    #[test]
    fn the_checksum_is_that_of_ieee_802_3() {
        // The check value of the CRC catalogue, and test vectors of zeros in the style of RFC 3720.
        assert_eq!(crc32([b"123456789", b""]), 0xcbf4_3926);
        assert_eq!(crc32([b"1234", b"56789"]), 0xcbf4_3926);
        assert_eq!(crc32([&[0; 32], b""]), 0x190a_55ad);
        assert_eq!(crc32([b"", b""]), 0);
    }

    #[test]
    fn a_journal_reads_back_as_written() {
        let (bytes, _) = journal();
        let end = bytes.len();
        let bytes = padded(bytes);
        let scan = scan(&bytes).unwrap();
        assert_eq!((scan.documents.as_slice(), scan.end, scan.tail), (&DOCUMENTS[..], end, Tail::Clean));
    }

    #[test]
    fn a_frame_torn_at_any_byte_is_the_only_one_lost() {
        let (bytes, starts) = journal();
        for torn in starts[2] + 1..bytes.len() {
            let file = padded(bytes[..torn].to_vec());
            let scan = scan(&file).unwrap();
            assert_eq!(scan.documents, DOCUMENTS[..2], "{torn}");
            assert_eq!((scan.end, scan.tail), (starts[2], Tail::Torn), "{torn}");
        }
        assert_eq!(scan(&padded(bytes[..starts[2]].to_vec())).unwrap().tail, Tail::Clean);
    }

    #[test]
    fn a_file_cut_off_anywhere_is_damaged_and_its_complete_frames_are_read() {
        let (bytes, starts) = journal();
        let file = padded(bytes.clone());
        for cut in MAGIC.len()..file.len() {
            if cut > bytes.len() + 64 && !cut.is_multiple_of(4093) {
                continue;
            }
            let scan = scan(&file[..cut]).unwrap();
            let whole = starts[1..].iter().chain([&bytes.len()]).filter(|end| **end <= cut).count();
            assert_eq!((scan.documents.as_slice(), scan.tail), (&DOCUMENTS[..whole], Tail::Damaged), "{cut}");
        }
        for cut in 0..MAGIC.len() {
            assert_eq!(scan(&file[..cut]), None, "{cut}");
        }
    }

    #[test]
    fn a_file_cut_off_inside_a_frame_at_a_chunk_boundary_is_damaged() {
        let chunk = CHUNK_BYTES as usize;
        // A frame across the end of the first chunk, split at every part of its head and in its
        // document.
        for over in 1..HEAD_BYTES + 2 {
            let mut bytes = MAGIC.to_vec();
            push(&mut bytes, &vec![b'x'; chunk - MAGIC.len() - HEAD_BYTES - over]);
            push(&mut bytes, b"{\"over\":1}");
            bytes.resize(2 * chunk, 0);
            assert_eq!(scan(&bytes).unwrap().tail, Tail::Clean, "{over}");
            bytes.truncate(chunk);
            let scan = scan(&bytes).unwrap();
            assert_eq!((scan.documents.len(), scan.tail), (1, Tail::Damaged), "{over}");
        }
    }

    #[test]
    fn a_flipped_bit_is_detected() {
        let (bytes, starts) = journal();
        for bit in MAGIC.len() * 8..bytes.len() * 8 {
            let mut file = padded(bytes.clone());
            file[bit / 8] ^= 1 << (bit % 8);
            let scan = scan(&file).unwrap();
            let before = starts.iter().rposition(|start| *start <= bit / 8).unwrap();
            assert_eq!(scan.documents, DOCUMENTS[..before], "{bit}");
            assert_eq!(scan.tail, Tail::Damaged, "{bit}");
        }
    }
}
