//! Networks whose machines may connect by TCP.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// A network: an address and the number of leading bits that its members have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix: u32,
}

/// Why a text is not a network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// Neither an address nor an address with a prefix length.
    #[error(
        "it is not a network; write ADDRESS/BITS, like 192.0.2.0/24 or 2001:db8::/32, or one address"
    )]
    Syntax,
    /// The address has bits behind the prefix: perhaps another network was meant.
    #[error("the address has bits behind the prefix; write {0}, or one address without '/'")]
    Behind(Network),
}

/// Returns the first `prefix` bits of an address, and zeroes behind them.
fn masked(address: IpAddr, prefix: u32) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - prefix).unwrap_or(0);
            IpAddr::V4((u32::from(v4) & mask).into())
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - prefix).unwrap_or(0);
            IpAddr::V6((u128::from(v6) & mask).into())
        }
    }
}

impl Network {
    /// Returns whether an address is in the network. An IPv4 address is the same in its IPv6 form
    /// (`::ffff:192.0.2.1`), in which a socket that accepts both families reports it.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_ipv4() == self.address.is_ipv4() && masked(address, self.prefix) == self.address
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    /// Parses `ADDRESS/BITS`, or an address alone.
    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| NetworkError::Syntax)?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let prefix: u32 = match prefix {
            // `parse` alone would accept a sign.
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                digits.parse().map_err(|_| NetworkError::Syntax)?
            }
            Some(_) => return Err(NetworkError::Syntax),
            None => bits,
        };
        if prefix > bits {
            return Err(NetworkError::Syntax);
        }
        if address != address.to_canonical() {
            // The prefix counts the 96 leading bits of the mapped form (`::ffff:0:0/96`); a shorter
            // prefix would include addresses that are not IPv4.
            let prefix = prefix.checked_sub(96).ok_or(NetworkError::Syntax)?;
            return Network::new(address.to_canonical(), prefix);
        }
        Network::new(address, prefix)
    }
}

impl Network {
    fn new(address: IpAddr, prefix: u32) -> Result<Self, NetworkError> {
        let network = Network { address: masked(address, prefix), prefix };
        if network.address == address { Ok(network) } else { Err(NetworkError::Behind(network)) }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> Network {
        text.parse().expect(text)
    }

    #[test]
    fn members_are_those_with_the_same_prefix() {
        for (text, inside, outside) in [
            ("192.0.2.0/24", ["192.0.2.0", "::ffff:192.0.2.255"], ["192.0.3.0", "c000:200::"]),
            ("192.0.2.7", ["192.0.2.7", "::ffff:192.0.2.7"], ["192.0.2.6", "::1"]),
            ("0.0.0.0/0", ["127.0.0.1", "255.255.255.255"], ["::1", "::"]),
            ("::ffff:10.0.0.0/104", ["10.1.2.3", "::ffff:10.0.0.1"], ["11.0.0.0", "::a00:1"]),
            ("2001:db8::/33", ["2001:db8::", "2001:db8:7fff::1"], ["2001:db8:8000::", "10.0.0.1"]),
            ("::1", ["::1", "0:0::1"], ["::2", "127.0.0.1"]),
            ("::/0", ["::", "ffff::1"], ["::ffff:10.0.0.1", "10.0.0.1"]),
        ] {
            for address in inside {
                assert!(
                    network(text).contains(address.parse().expect(address)),
                    "{text} {address}"
                );
            }
            for address in outside {
                assert!(
                    !network(text).contains(address.parse().expect(address)),
                    "{text} {address}"
                );
            }
        }
    }

    #[test]
    fn texts_that_are_no_networks_are_refused() {
        for bad in [
            "",
            "/",
            "10.0.0.0/",
            "10.0.0.0/33",
            "10.0.0.0/-1",
            "10.0.0.0/+8",
            "10.0.0/8",
            "::/129",
            "[::1]",
            "localhost",
            "10.0.0.0/8 ",
            "10.0.0.0/8/8",
            "::ffff:0:0/95",
            "fe80::1%eth0",
        ] {
            assert_eq!(bad.parse::<Network>(), Err(NetworkError::Syntax), "{bad:?}");
        }
        for (bad, meant) in [
            ("10.0.0.1/8", "10.0.0.0/8"),
            ("2001:db8::1/64", "2001:db8::/64"),
            ("::ffff:10.0.0.1/104", "10.0.0.0/8"),
        ] {
            let error = bad.parse::<Network>().expect_err(bad);
            assert_eq!(error, NetworkError::Behind(network(meant)));
            assert!(error.to_string().contains(meant));
        }
    }
}
