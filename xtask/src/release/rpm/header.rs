//! rpm's headers: an index of tags and a store of their values.

/// The region of a package's header, which ends with a trailer.
pub const IMMUTABLE: u32 = 63;
/// The region of the header of checksums.
pub const SIGNATURES: u32 = 62;

/// The values of a tag.
pub enum Value {
    Int16(Vec<u16>),
    Int32(Vec<u32>),
    Text(String),
    Binary(Vec<u8>),
    Texts(Vec<String>),
    /// In the one language of these packages.
    Translated(String),
}

#[derive(Default)]
pub struct Header {
    entries: Vec<(u32, Value)>,
}

const MAGIC: [u8; 8] = [0x8e, 0xad, 0xe8, 1, 0, 0, 0, 0];
/// Of an entry of the index, and of the trailer, which has the form of one.
const ENTRY_BYTES: usize = 16;
const BINARY: u32 = 7;

// === impl Header ===

impl Header {
    pub fn add(&mut self, tag: u32, value: Value) {
        self.entries.push((tag, value));
    }

    pub fn text(&mut self, tag: u32, text: &str) {
        self.add(tag, Value::Text(text.to_owned()));
    }

    /// The header in one region, in the order of tags.
    pub fn bytes(mut self, region: u32) -> Vec<u8> {
        self.entries.sort_by_key(|(tag, _)| *tag);
        let (mut index, mut store) = (Vec::new(), Vec::new());
        for (tag, value) in &self.entries {
            store.resize(usize::next_multiple_of(store.len(), value.alignment()), 0);
            index.extend(entry(*tag, value.kind(), signed(store.len()), value.count()));
            value.append(&mut store);
        }
        let entries = self.entries.len() + 1;
        // The trailer says how far before it the index begins.
        let trailer = entry(region, BINARY, -signed(entries * ENTRY_BYTES), signed(ENTRY_BYTES));
        let first = entry(region, BINARY, signed(store.len()), signed(ENTRY_BYTES));
        store.extend(trailer);
        let mut header = MAGIC.to_vec();
        header.extend(signed(entries).to_be_bytes());
        header.extend(signed(store.len()).to_be_bytes());
        header.extend(first);
        header.extend(index);
        header.extend(store);
        header
    }
}

/// Headers are far smaller than 2 GiB.
fn signed(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

fn entry(tag: u32, kind: u32, offset: i32, count: i32) -> Vec<u8> {
    [tag.to_be_bytes(), kind.to_be_bytes(), offset.to_be_bytes(), count.to_be_bytes()].concat()
}

// === impl Value ===

impl Value {
    fn kind(&self) -> u32 {
        match self {
            Self::Int16(_) => 3,
            Self::Int32(_) => 4,
            Self::Text(_) => 6,
            Self::Binary(_) => BINARY,
            Self::Texts(_) => 8,
            Self::Translated(_) => 9,
        }
    }

    fn alignment(&self) -> usize {
        match self {
            Self::Int16(_) => 2,
            Self::Int32(_) => 4,
            _ => 1,
        }
    }

    fn count(&self) -> i32 {
        signed(match self {
            Self::Int16(all) => all.len(),
            Self::Int32(all) => all.len(),
            Self::Binary(all) => all.len(),
            Self::Texts(all) => all.len(),
            Self::Text(_) | Self::Translated(_) => 1,
        })
    }

    fn append(&self, store: &mut Vec<u8>) {
        match self {
            Self::Int16(all) => all.iter().for_each(|it| store.extend(it.to_be_bytes())),
            Self::Int32(all) => all.iter().for_each(|it| store.extend(it.to_be_bytes())),
            Self::Binary(all) => store.extend(all),
            Self::Texts(all) => all.iter().for_each(|it| append_text(it, store)),
            Self::Text(text) | Self::Translated(text) => append_text(text, store),
        }
    }
}

fn append_text(text: &str, store: &mut Vec<u8>) {
    store.extend(text.bytes());
    store.push(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_aligned_and_the_trailer_leads_back_to_the_index() {
        let mut header = Header::default();
        header.add(1009, Value::Int32(vec![7]));
        header.text(1000, "ab");
        let bytes = header.bytes(IMMUTABLE);
        let word = |at: usize| i32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!((word(8), word(12)), (3, 24), "entries, and bytes of the store");
        let entries: Vec<[i32; 4]> =
            (0..3).map(|at| [0, 4, 8, 12].map(|field| word(16 + at * 16 + field))).collect();
        assert_eq!(entries, [[63, 7, 8, 16], [1000, 6, 0, 1], [1009, 4, 4, 1]]);
        assert_eq!(bytes[64..72], *b"ab\0\0\0\0\0\x07");
        assert_eq!([72, 76, 80, 84].map(word), [63, 7, -48, 16]);
    }
}
