"""Texts that would become markup, code or addresses where somebody forgets to escape them."""

XSS = [
    "<script>window.broken = 1</script>",
    "<img src=x onerror='window.broken = 2'>",
    '"><svg onload=window.broken=3><a href="',
    "' onmouseover='window.broken = 4' x='",
    "javascript:window.broken=5",
    "</title><xss-probe>",
    "</pre></td></table><xss-probe>",
    "{{ 7 * 7 }}{% raise %}",
    "<!-- --><xss-probe hidden>",
    "&lt;xss-probe&gt;",
    "\u202e<xss-probe>\u2066",
    '<a href="javascript:window.broken=6">click</a>',
]
EVERYTHING = " ".join(XSS)
