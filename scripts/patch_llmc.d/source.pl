# Finds places in C code by its structure. A range { from, to } has offsets into the text of a file. Searches
# use the mask, a copy of the text with comments and strings blanked, so that only code can match.
use strict;
use warnings;
use feature 'signatures';
no warnings 'experimental::signatures';

our $GUIDE = 'docs/porting.md shows how to make the edits by hand';

sub stop ($message) {
    print STDERR "patch_llmc: $message\n";
    exit 1;
}

# Ends the script with file, line and a message, before anything is written.
sub refuse ($f, $at, $message) {
    stop("$f->{name}:" . line_of($f->{text}, $at) . ": $message. Nothing was changed; $GUIDE");
}

sub missing ($f, $in, $wanted) {
    my $where = "$f->{name}:" . line_of($f->{text}, $in->{from});
    $where .= ": in $in->{function}()" if $in->{function};
    stop("$where: looked for $wanted, but did not find it. Nothing was changed. If "
         . "this fork is older than llm.c of 2024-07-30, merge upstream first; $GUIDE");
}

sub line_of ($text, $at) {
    return 1 + (substr($text, 0, $at) =~ tr/\n//);
}

sub line_start ($f, $at) {
    return 0 if $at == 0;
    return 1 + rindex($f->{text}, "\n", $at - 1);
}

sub line_end ($f, $at) {
    my $end = index $f->{text}, "\n", $at;
    return $end < 0 ? length $f->{text} : $end + 1;
}

sub text_of ($f, $range) { return substr $f->{text}, $range->{from}, $range->{to} - $range->{from} }
sub mask_of ($f, $range) { return substr $f->{mask}, $range->{from}, $range->{to} - $range->{from} }

sub whole ($f) { return { from => 0, to => length $f->{mask} } }
sub span ($first, $last) { return { from => $first->{from}, to => $last->{to} } }
sub between ($first, $last) { return { from => $first->{to}, to => $last->{from} } }
sub rest ($done, $in) { return { %$in, from => $done->{to} } }
sub within ($range, $in) { return { %$range, function => $in->{function} } }
sub contains ($range, $at) { return $range->{from} <= $at && $at < $range->{to} }

# Returns the range without white space at its ends and without the rest of the line with its opening brace.
sub trimmed ($f, $range) {
    my ($text, $mask) = (text_of($f, $range), mask_of($f, $range));
    my $before = $mask =~ /^([ \t]*\n)/ ? length $1 : 0;
    $before += length $1 if substr($text, $before) =~ /^(\s+)/;
    my $after = $text =~ /(\s+)\z/ ? length $1 : 0;
    return { %$range, from => $range->{from} + $before, to => $range->{to} - $after };
}

# Returns the range without comments and white space at its end.
sub code_only ($f, $range) {
    my ($blank) = mask_of($f, $range) =~ /(\s*)\z/;
    return { %$range, to => $range->{to} - length $blank };
}

my $COMMENT = qr{//[^\n]*|/\*.*?\*/}s;
my $STRING = qr{"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)+'};

# Replaces comments and strings with the same number of blanks, to keep all offsets.
sub masked ($text) {
    $text =~ s{^(\#include[^\n]*)|($COMMENT|$STRING)}{ $1 // $2 =~ s/[^\n]/ /gr }gme;
    return $text;
}

# Returns all places in a range where the pattern matches, with its groups as {1}, {2}, ...; ends the script
# if it finds none. The pattern is a regular expression, or a piece of C for like(), which messages quote.
sub find_all ($f, $in, $pattern, $wanted = $pattern) {
    my @found = find_any($f, $in, $pattern);
    missing($f, $in, $wanted) unless @found;
    return @found;
}

sub find ($f, $in, $pattern, $wanted = $pattern) {
    my ($first) = find_all($f, $in, $pattern, $wanted);
    return $first;
}

sub find_any ($f, $in, $pattern) {
    my $part = mask_of($f, $in);
    $pattern = like($pattern) if !ref $pattern;
    my @found;
    while ($part =~ /$pattern/g) {
        my $match = { from => $in->{from} + $-[0], to => $in->{from} + $+[0], function => $in->{function} };
        for my $group (1 .. $#-) {
            my ($from, $to) = ($-[$group], $+[$group]);
            $match->{$group} = defined $from ? substr($f->{text}, $in->{from} + $from, $to - $from) : '';
        }
        push @found, $match;
    }
    return @found;
}

# Returns a pattern for a piece of C in which white space may differ: ... matches anything without a
# semicolon, <...> also captures it, and <name> captures a word.
my %WILD = ('...' => '[^;]*?', '<...>' => '([^;]*?)');

sub like ($code) {
    my ($pattern, $last) = ('', '');
    for my $token ($code =~ /<\w+>|<\.\.\.>|\.\.\.|\w+|\S/g) {
        my $is_word = $token =~ /^(?:\w|<\w)/;
        $pattern .= $is_word && $last =~ /\w>?$/ ? '\s+' : '\s*' if $last ne '';
        $pattern .= $WILD{$token} // ($token =~ /^<\w+>$/ ? '(\w+)' : quotemeta $token);
        $last = $token;
    }
    return qr/(?<!\w)$pattern(?!\w)/ if $last =~ /^\w/;
    return $code =~ /^[\w<]/ ? qr/(?<!\w)$pattern/ : qr/$pattern/;
}

# Returns the range inside the braces that open at $at.
sub braces ($f, $at) {
    my $end = end_of_block($f, $at);
    defined $end or stop("$f->{name}:" . line_of($f->{text}, $at) . ": this { is never closed");
    return { from => $at + 1, to => $end };
}

# Returns the end of the block that opens at $at or contains $at, or undef.
sub end_of_block ($f, $at) {
    my $depth = substr($f->{mask}, $at, 1) eq '{' ? 0 : 1;
    pos($f->{mask}) = $at;
    while ($f->{mask} =~ /([{}])/g) {
        $depth += $1 eq '{' ? 1 : -1;
        return pos($f->{mask}) - 1 if $depth == 0;
    }
    return undef;
}

# Returns the body of a function; {head} is where the definition begins.
sub function ($f, $name) {
    my $head = find($f, whole($f), qr/^\w?[\w \t*]*\b$name\s*\([^{};]*\)\s*(?=\{)/m, "the function $name");
    return { %{ braces($f, $head->{to}) }, head => $head->{from}, function => $name };
}

# Returns the statement around a place.
sub statement ($f, $place) {
    # Not a regular expression anchored at this place, because perl would try it at every earlier offset.
    my $before = substr $f->{mask}, 0, $place->{from};
    my ($last) = sort { $b <=> $a } map { rindex $before, $_ } ';', '{', '}';
    $before = substr $before, $last + 1;
    $before =~ s/^\s+//;
    my $end = index $f->{mask}, ';', $place->{to} - 1;
    return { from => $place->{from} - length $before, to => $end + 1 };
}

my $LINE = qr/^[ \t]*#(?:\\\n|[^\n])*/m;
my $OPERATOR = qr{<<<|>>>|<<=|>>=|\.\.\.|->|\+\+|--|<<|>>|&&|\|\||::|[-+*/%&|^!=<>]=};
my $TOKEN = qr/$STRING|\w[\w.]*|$OPERATOR|./s;

# Returns the tokens of a range, as { text, at }, without comments and white space. A preprocessor line is one
# token.
sub tokens ($f, $range) {
    my $text = text_of($f, $range);
    my @found;
    while ($text =~ /\G(?:($LINE)|\s|$COMMENT|($TOKEN))/gm) {
        my ($line, $token, $at) = ($1, $2, $range->{from} + $-[0]);
        if (defined $line) {
            $line =~ s/$COMMENT|\\\n/ /g;
            $token = join ' ', split ' ', $line;
        }
        push @found, { text => $token, at => $at } if defined $token;
    }
    return @found;
}

# Returns the tokens in groups, each of which ends at a brace, a preprocessor line or a semicolon outside
# parentheses.
sub statements ($f, $range) {
    my ($depth, @all, @now) = (0);
    for my $token (tokens($f, $range)) {
        my $text = $token->{text};
        push @now, $token;
        $depth++ if $text eq '(';
        $depth-- if $text eq ')';
        next unless $text =~ /^[{}#]/ || $text eq ';' && $depth == 0;
        push @all, [@now];
        @now = ();
    }
    push @all, [@now] if @now;
    return @all;
}

1;
