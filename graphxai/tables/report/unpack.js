"use strict";
/* Unpack a block of details: text in UTF-8 that is deflated (RFC 1951) and in base 64. Browsers can do this only
   while a page waits, and old ones not at all. */

const LENGTHS = { base: [], extra: [] }; // of a match, by its symbol less 257
const DISTANCES = { base: [], extra: [] }; // of a match
for (const [{ base, extra }, count, group, first] of [[LENGTHS, 28, 4, 3], [DISTANCES, 30, 2, 1]])
  for (let k = 0, next = first; k < count; k++) {
    extra.push(Math.max(0, Math.floor(k / group) - 1));
    base.push(next);
    next += 1 << extra[k];
  }
LENGTHS.base.push(258);
LENGTHS.extra.push(0);
const CODE_ORDER = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];
const FIXED = [...Array(144).fill(8), ...Array(112).fill(9), ...Array(24).fill(7), ...Array(8).fill(8)];

/* A table of a prefix code: for the next bits of the input, the symbol (times 16) and the length of its code. */
function codeTable(lengths) {
  const longest = Math.max(...lengths, 1);
  const table = new Uint16Array(1 << longest);
  let code = 0;
  for (let length = 1; length <= longest; length++, code <<= 1)
    for (let symbol = 0; symbol < lengths.length; symbol++) {
      if (lengths[symbol] !== length) continue;
      let reversed = 0;
      for (let bit = 0; bit < length; bit++) reversed |= ((code >> bit) & 1) << (length - 1 - bit);
      for (let at = reversed; at < table.length; at += 1 << length) table[at] = symbol * 16 + length;
      code++;
    }
  return { table, longest };
}

function unpacked(text) {
  const bytes = atob(text);
  const input = new Uint8Array(bytes.length);
  for (let k = 0; k < bytes.length; k++) input[k] = bytes.charCodeAt(k);
  let output = new Uint8Array(8 * input.length);
  let [at, held, bits, size] = [0, 0, 0, 0];
  const fill = (count) => { for (; bits < count; bits += 8) held |= input[at++] << bits; };
  const take = (count) => {
    fill(count);
    const value = held & ((1 << count) - 1);
    held >>>= count;
    bits -= count;
    return value;
  };
  const symbolOf = ({ table, longest }) => {
    fill(longest);
    const entry = table[held & ((1 << longest) - 1)];
    held >>>= entry & 15;
    bits -= entry & 15;
    return entry >> 4;
  };
  const reserve = (count) => {
    if (size + count <= output.length) return;
    const longer = new Uint8Array(2 * (size + count));
    longer.set(output);
    output = longer;
  };
  const readLengths = () => {
    const [literals, distances, count] = [take(5) + 257, take(5) + 1, take(4) + 4];
    const ofCodes = Array(19).fill(0);
    for (const symbol of CODE_ORDER.slice(0, count)) ofCodes[symbol] = take(3);
    const codes = codeTable(ofCodes);
    const lengths = [];
    while (lengths.length < literals + distances) {
      const symbol = symbolOf(codes);
      const repeated = symbol === 16 ? lengths.at(-1) : 0;
      if (symbol < 16) lengths.push(symbol);
      else for (let left = symbol === 16 ? take(2) + 3 : symbol === 17 ? take(3) + 3 : take(7) + 11; left; left--) lengths.push(repeated);
    }
    return [lengths.slice(0, literals), lengths.slice(literals)].map(codeTable);
  };
  for (let last = 0; !last;) {
    last = take(1);
    const kind = take(2);
    if (kind === 0) { // a part that is not packed
      at -= bits >> 3; // whole bytes that were read ahead
      [held, bits] = [0, 0];
      const length = input[at] | (input[at + 1] << 8);
      reserve(length);
      output.set(input.subarray(at + 4, at + 4 + length), size);
      at += 4 + length;
      size += length;
      continue;
    }
    const [literals, distances] = kind === 2 ? readLengths() : [FIXED, Array(30).fill(5)].map(codeTable);
    for (let symbol = symbolOf(literals); symbol !== 256; symbol = symbolOf(literals)) {
      reserve(258);
      if (symbol < 256) {
        output[size++] = symbol;
        continue;
      }
      const length = LENGTHS.base[symbol - 257] + take(LENGTHS.extra[symbol - 257]);
      const far = symbolOf(distances);
      const distance = DISTANCES.base[far] + take(DISTANCES.extra[far]);
      for (const end = size + length; size < end; size++) output[size] = output[size - distance];
    }
  }
  return new TextDecoder().decode(output.subarray(0, size));
}
