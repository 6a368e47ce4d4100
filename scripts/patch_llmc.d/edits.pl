# Records edits and applies them. An edit inserts whole lines at an offset, which must be the start of a line.
use strict;
use warnings;
use feature 'signatures';
no warnings 'experimental::signatures';

sub is_replaced ($f, $at) { return scalar grep { contains($_, $at) } @{ $f->{replaced} || [] } }

sub guarded ($code) { return "#ifdef LLMC_ZERO\n$code#endif\n" }

sub indented ($f, $range, @lines) {
    my ($indent) = substr($f->{text}, line_start($f, $range->{from})) =~ /^([ \t]*)/;
    return join '', map { $_ eq '' ? "\n" : "$indent$_\n" } map { split /\n/ } @lines;
}

# $what is the purpose printed in the report; only an edit's first insertion has one.
sub insert ($f, $at, $code, $what = undef) {
    push @{ $f->{edits} }, { at => $at, code => $code, what => $what, order => $code eq "#endif\n" ? 0 : 1 };
}

# Returns the start and end of a range's lines. They may contain no other code, because edits add whole lines.
sub own_lines ($f, $range) {
    my ($start, $end) = (line_start($f, $range->{from}), line_end($f, $range->{to}));
    my $others = mask_of($f, { from => $start, to => $range->{from} })
        . mask_of($f, { from => $range->{to}, to => $end });
    my ($first) = substr($f->{text}, $range->{from}) =~ /^([^\n]*)/;
    $others =~ /\S/ and missing($f, { from => $range->{from} }, "this on separate lines: $first");
    return ($start, $end);
}

sub before ($f, $range, @lines) {
    my ($start) = own_lines($f, $range);
    insert($f, $start, guarded(indented($f, $range, @lines)), $f->{what});
}

sub after ($f, $range, @lines) {
    my (undef, $end) = own_lines($f, $range);
    insert($f, $end, guarded(indented($f, $range, @lines)), $f->{what});
}

sub enclose ($f, $range, $before) {
    my ($start, $end) = own_lines($f, $range);
    insert($f, $start, $before, $f->{what});
    insert($f, $end, "#endif\n");
    push @{ $f->{replaced} }, { from => $start, to => $end };
}

# Adds @lines, and moves the range's lines into an #else.
sub instead ($f, $range, @lines) {
    my $code = trimmed($f, $range);
    enclose($f, $code, "#ifdef LLMC_ZERO\n" . indented($f, $code, @lines) . "#else\n");
}

# Leaves the range's lines out of a build with the plugin.
sub without ($f, $range) { enclose($f, $range, "#ifndef LLMC_ZERO\n") }

# Like instead(), for several places, each with its {new} lines; adjacent places share one #ifdef.
sub instead_each ($f, @places) {
    instead($f, span(@$_[0, -1]), map { $_->{new} } @$_) for adjacent($f, @places);
}

# Groups places that have nothing but white space and comments between them.
sub adjacent ($f, @places) {
    my @groups;
    for my $place (@places) {
        my $near = @groups && mask_of($f, between($groups[-1][-1], $place)) =~ /^\s*$/;
        if ($near) { push @{ $groups[-1] }, $place }
        else { push @groups, [$place] }
    }
    return @groups;
}

# Returns the edited text, and stores file, new line number and purpose of each edit in {report}.
sub edited ($f) {
    my ($result, $done) = ('', 0);
    my @edits = @{ $f->{edits} || [] };
    # At the same offset, the end of an edit comes before the start of the next.
    for my $i (sort { $edits[$a]{at} <=> $edits[$b]{at} || $edits[$a]{order} <=> $edits[$b]{order}
                      || $a <=> $b } 0 .. $#edits) {
        my $edit = $edits[$i];
        $result .= substr $f->{text}, $done, $edit->{at} - $done;
        $done = $edit->{at};
        my $line = line_of($result, length $result);
        push @{ $f->{report} }, "$f->{name}:$line: $edit->{what}" if $edit->{what};
        $result .= $edit->{code};
    }
    return $result . substr $f->{text}, $done;
}

1;
