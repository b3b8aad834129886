//! The largest packet that a path carries: tried once with the size of pods' largest packets, and if
//! that is lost, by halving what is between sizes that arrive and sizes that do not.

/// The search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PacketSize {
    max_bytes: u32,
    /// A packet of this size has arrived; 0: none but the smallest.
    arrives_bytes: u32,
    /// A packet of this size is lost, in several attempts.
    lost_bytes: Option<u32>,
    /// Lost attempts with the size that is being tried.
    attempts: u32,
    /// Turns since the search ended.
    rest: u32,
}

/// What arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fits {
    /// It was not tried yet, or the search goes on.
    Unknown,
    /// Every packet of pods.
    All,
    /// Packets up to about this size.
    UpTo(u32),
}

/// Lost attempts with a size before it counts as too large: one alone may be ordinary loss.
const ATTEMPTS: u32 = 2;
/// The search ends when it is known to so many bytes.
const PRECISION_BYTES: u32 = 8;
/// Turns after which pods' largest packet is tried again where it was lost, to see a repair.
const REST_TURNS: u32 = 6;

// === impl PacketSize ===

impl PacketSize {
    pub fn new(max_bytes: u32) -> Self {
        Self { max_bytes, arrives_bytes: 0, lost_bytes: None, attempts: 0, rest: 0 }
    }

    /// Sets the size of pods' largest packets. `is_proven`: a packet of this size has arrived, not too long ago. Another
    /// size, and one that is not proven any more, is tried anew.
    pub fn set(&mut self, max_bytes: u32, is_proven: bool) {
        if is_proven {
            *self = Self { arrives_bytes: max_bytes, ..Self::new(max_bytes) };
        } else if self.max_bytes != max_bytes || self.fits() == Fits::All {
            *self = Self::new(max_bytes);
        }
    }

    pub fn max_bytes(&self) -> u32 {
        self.max_bytes
    }

    pub fn fits(&self) -> Fits {
        match self.lost_bytes {
            None if self.arrives_bytes >= self.max_bytes => Fits::All,
            Some(_) if !self.is_searching() => Fits::UpTo(self.arrives_bytes),
            _ => Fits::Unknown,
        }
    }

    /// Whether a size has to be tried before something can be said.
    pub fn is_searching(&self) -> bool {
        match self.lost_bytes {
            None => self.arrives_bytes < self.max_bytes,
            Some(lost) => lost.saturating_sub(self.arrives_bytes) > PRECISION_BYTES,
        }
    }

    /// The size to try in this turn.
    pub fn next(&mut self) -> Option<u32> {
        match self.lost_bytes {
            None => (self.arrives_bytes < self.max_bytes).then_some(self.max_bytes),
            Some(lost) if self.is_searching() => Some(self.arrives_bytes + (lost - self.arrives_bytes) / 2),
            Some(_) => {
                self.rest += 1;
                let is_due = self.rest.is_multiple_of(REST_TURNS);
                is_due.then_some(self.max_bytes)
            }
        }
    }

    /// A packet of this size has arrived, or is lost although a small one arrived.
    pub fn tried(&mut self, bytes: u32, arrived: bool) {
        if bytes > self.max_bytes {
            return;
        }
        if arrived {
            self.attempts = 0;
            self.arrives_bytes = self.arrives_bytes.max(bytes);
            self.lost_bytes.take_if(|lost| *lost <= bytes);
            return;
        }
        self.attempts += 1;
        if self.attempts >= ATTEMPTS && bytes > self.arrives_bytes {
            self.attempts = 0;
            self.lost_bytes = Some(self.lost_bytes.map_or(bytes, |lost| lost.min(bytes)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tries until the search ends on a path that carries `carries` bytes, and returns the number of attempts.
    fn search(size: &mut PacketSize, carries: u32) -> u32 {
        let mut attempts = 0;
        while size.is_searching() {
            let bytes = size.next().unwrap();
            attempts += 1;
            size.tried(bytes, bytes <= carries);
            assert!(attempts < 100, "{size:?}");
        }
        attempts
    }

    #[test]
    fn one_packet_is_enough_where_everything_fits_and_a_few_more_find_what_does() {
        let mut size = PacketSize::new(1450);
        assert_eq!((size.fits(), search(&mut size, 1450), size.fits()), (Fits::Unknown, 1, Fits::All));
        assert_eq!(size.next(), None, "nothing more is sent");
        for carries in [60, 576, 1280, 1350, 1442, 8900] {
            let max = if carries > 1450 { 8950 } else { 1450 };
            let mut size = PacketSize::new(max);
            let attempts = search(&mut size, carries);
            let Fits::UpTo(found) = size.fits() else { panic!("{carries}: {size:?}") };
            assert!(
                found <= carries && found + PRECISION_BYTES >= carries && attempts <= 24,
                "{carries}: {found}, {attempts}"
            );
        }
    }

    #[test]
    fn a_repair_is_noticed_and_a_single_loss_is_none() {
        let mut size = PacketSize::new(1450);
        size.tried(1450, false);
        assert_eq!(size.fits(), Fits::Unknown);
        size.tried(1450, true);
        assert_eq!(size.fits(), Fits::All);
        let mut size = PacketSize::new(1450);
        search(&mut size, 1300);
        let turns: Vec<u32> = (0..2 * REST_TURNS).filter_map(|_| size.next()).collect();
        assert_eq!(turns, [1450, 1450], "two of twelve turns");
        size.tried(1450, true);
        assert_eq!(size.fits(), Fits::All);
        size.set(1450, true);
        assert_eq!(size.fits(), Fits::All);
        size.set(1450, false);
        assert_eq!(size.fits(), Fits::Unknown, "the proof is too old");
        search(&mut size, 1300);
        let found = size.fits();
        size.set(1450, false);
        assert_eq!(size.fits(), found);
        assert!(matches!(found, Fits::UpTo(1292..=1300)), "{size:?}");
        size.set(1400, false);
        assert_eq!(size.fits(), Fits::Unknown);
        size.set(1400, true);
        assert_eq!(size.fits(), Fits::All);
    }
}
