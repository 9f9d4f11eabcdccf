//! The tags of a front end's requests in flight.

/// Values of requests in flight by tag. A tag is an index in a table and, in the upper bits, the
/// number of times that the entry was used, so that stale tags are recognised.
#[derive(Debug)]
pub struct Tags<T> {
    places: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

impl<T> Default for Tags<T> {
    fn default() -> Self {
        Tags { places: Vec::new(), free: Vec::new() }
    }
}

impl<T> Tags<T> {
    /// Returns the number of requests in flight.
    pub fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Returns whether no request is in flight.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a request; returns its tag.
    pub fn add(&mut self, request: T) -> u64 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push((0, None));
            self.places.len() as u32 - 1
        });
        let Some((uses, entry)) = self.places.get_mut(place as usize) else { return u64::MAX };
        *entry = Some(request);
        u64::from(*uses) << 32 | u64::from(place)
    }

    /// Removes the request with this tag; `None` if it has ended already.
    pub fn remove(&mut self, tag: u64) -> Option<T> {
        let place = tag as u32;
        let (uses, entry) = self.places.get_mut(place as usize)?;
        if u64::from(*uses) != tag >> 32 {
            return None;
        }
        let request = entry.take()?;
        *uses = uses.wrapping_add(1);
        self.free.push(place);
        Some(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_not_mistaken_for_later_ones() {
        let mut table = Tags::default();
        let first = table.add(());
        let second = table.add(());
        assert!(table.remove(first).is_some());
        assert!(table.remove(first).is_none());
        let third = table.add(());
        assert_eq!(third as u32, first as u32);
        assert!(table.remove(first).is_none());
        assert!(table.remove(u64::MAX).is_none());
        assert_eq!(table.len(), 2);
        assert!(table.remove(second).is_some() && table.remove(third).is_some());
        assert!(table.is_empty());
    }
}
