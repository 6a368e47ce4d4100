// Writes the default corpus: short children's stories from templates and word lists, the same bytes on every
// machine.
//
//     make_stories DIR [--bytes N]
//
// DIR/stories_train.bin has about N bytes of text (default 4000000) as a token shard: one token per byte, and
// end-of-text (256) before each story. DIR/stories_val.bin has about 100000 more bytes, the same for every N.
// DIR/stories_tokenizer.bin has the 257 tokens, for decoding. No story occurs twice, whether in one file or
// in both. The grammar is simple, with few forms and many words, so that a tiny model learns to write
// readable sentences within a minute.
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "gpt2/gpt2_error.h"
#include "byte_tokenizer.h"

enum { VAL_BYTES = 100000, TRAIN_BYTES = 4000000, MAX_BYTES = 1000000000, MAX_STORY = 4096 };
#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

// -------- words

static const char *const girls[] = { "Anna",  "Bella", "Clara", "Daisy", "Ella",  "Fiona", "Grace", "Hazel",
                                     "Ivy",   "Julia", "Kate",  "Lily",  "Lucy",  "Mia",   "Molly", "Nora",
                                     "Olive", "Penny", "Rosie", "Sara",  "Tilly", "Zoe" };
static const char *const boys[] = { "Adam",  "Ben", "Charlie", "Dan",  "Eddie", "Finn",   "George", "Henry",
                                    "Jack",  "Leo", "Max",     "Milo", "Noah",  "Oliver", "Oscar",  "Paul",
                                    "Peter", "Sam", "Theo",    "Tim",  "Toby",  "Will" };
static const char *const creatures[] = { "rabbit", "mouse",  "bear",     "fox",    "squirrel", "duck",
                                         "frog",   "turtle", "hedgehog", "owl",    "deer",     "pony",
                                         "lamb",   "puppy",  "kitten",   "badger", "beaver",   "goose" };
static const char *const babies[] = { "bird",  "duckling", "puppy",  "kitten", "lamb",    "chick",
                                      "bunny", "fawn",     "piglet", "calf",   "fox cub", "bear cub" };
static const char *const colors[] = { "red",    "blue",  "green", "yellow", "pink",
                                      "purple", "white", "brown", "golden", "silver" };
static const char *const toys[] = { "ball",    "kite",   "hat",     "boat",      "drum",       "doll",
                                    "scarf",   "bell",   "toy car", "toy train", "book",       "basket",
                                    "blanket", "button", "whistle", "bucket",    "teddy bear", "music box",
                                    "lantern", "marble", "ribbon" };
static const char *const fragile[] = { "cup",  "plate", "clock",  "vase",   "lamp",
                                       "bowl", "pot",   "mirror", "teapot", "glass bird" };
static const char *const places[] = {
    "park",        "garden",        "pond",   "beach",      "river",        "lake",     "farm",
    "market",      "playground",    "meadow", "old bridge", "big oak tree", "windmill", "edge of the woods",
    "little hill", "village square"
};
static const char *const foods[] = { "cake",    "bread",   "cookies", "soup",     "apple pie",
                                     "honey",   "berries", "cheese",  "pancakes", "nuts",
                                     "carrots", "jam",     "pears",   "plums" };
static const char *const grown_ups[] = { "mom", "dad", "grandma", "grandpa", "aunt", "uncle" };
static const char *const spots[] = { "under a bush",       "behind a tree",    "inside a hollow log",
                                     "next to a big rock", "under the bench",  "in the tall grass",
                                     "between two stones", "behind the fence", "in a pile of leaves",
                                     "under the bridge" };
static const char *const buildings[] = { "tower",      "sand castle", "tree house", "snowman",
                                         "bird house", "little hut",  "stone wall" };
static const char *const skills[] = { "swim",   "ride a bike",    "skate",
                                      "juggle", "whistle a song", "climb a rope",
                                      "dance",  "play the drum",  "row a boat" };
static const char *const fears[] = { "the dark",    "thunder",      "deep water", "high places",
                                     "loud noises", "the old barn", "big dogs",   "spiders" };
static const char *const plants[] = { "sunflower", "pumpkin",    "rose",  "tomato",
                                      "bean",      "strawberry", "tulip", "daisy" };
static const char *const songs[] = { "the moon",    "the stars",   "the spring",    "the sea",
                                     "a happy bee", "the morning", "a brave knight" };

// -------- stories
//
// {a|b} becomes one of the choices. The placeholders: $N the hero's name ($s he or she, $h his or her, $m him
// or her), $K the hero's kind, $F the friend's name, $k the friend's kind, $L color, $O thing, $Q thing that
// breaks, $P place, $W spot, $D food, $G grown-up, $A young animal, $B building, $I skill, $E fear, $Y plant,
// $M song. Sentences get a capital letter automatically; after a quotation use $H.

#define OPEN                                                                                               \
    "{Once upon a time, there was|There once was|Long ago, there was|In a small village, there lived|Not " \
    "far from here, there lived} a {little|small|kind|brave|happy|funny|young|clever|quiet|curious} $K "   \
    "named $N. "
#define DAY                                                                                        \
    "{One day,|One morning,|One sunny day,|One afternoon,|On a warm day,|After breakfast,|In the " \
    "spring,|One windy day,} "
#define LIVED                                                                                                \
    "{$s lived with $h $G near the $P. |$s liked to sing about $M. |$s had a friend named $F. |$s loved to " \
    "eat $D. |}"
#define MEET "{$F the $k|$h friend $F|$F, a {kind|friendly|clever} $k,} "
#define SAD                                                                                              \
    "{$N was very sad.|$N began to cry.|$N felt sad and sat down.|A tear ran down $h cheek.|$N did not " \
    "know what to do.} "
#define ASK                                                                                                \
    "{\"What is wrong?\" asked $F.|\"Why are you sad?\" asked $F.|\"Can I help you?\" asked $F.|\"Do not " \
    "cry,\" said $F. \"I will help you.\"} "
#define THANK                                                                                  \
    "{\"Thank you, $F!\" said $N.|$N gave $F a big hug.|$N smiled and said, \"You are a good " \
    "friend.\"|\"You "                                                                         \
    "are so kind,\" said $N.} "
#define END                                                                                                  \
    "{They played until the sun went down.|They went home together and ate $D.|From that day on, they were " \
    "best friends.|They laughed and danced all day.|That night, $N slept well and had a happy dream.|They "  \
    "sang a song about $M.|Everyone was happy.}\n"

static const char *const stories[] = {
    // something gets lost and is found
    OPEN LIVED
    "$s had a $L $O and took it everywhere.\n" DAY
    "$N went to the $P to play. {When it was time to go home|Then|After a while}, the $L $O was gone! {$N "
    "looked here and there, but $s could not find it.|\"Oh no! Where is my $O?\" said $N.} " SAD
    "\nThen " MEET "came by. " ASK
    "\"I lost my $L $O,\" said $N. {They looked up and down.|They looked for a long time.|$F had a good nose "
    "and looked everywhere.} At last, {they found it|$F saw it|there it was,} $W. " THANK "\n" END
    "{$N learned that friends help each other.|It is good to have a friend who helps.|$N learned to take "
    "good care of $h things.}",
    // sharing
    OPEN LIVED DAY
    "$h $G gave $m some $D. {$N was very happy.|The $D smelled so good!|\"Yum!\" said $N.} $s took the $D to "
    "the $P and sat down $W.\nThen " MEET
    "came by. {$F looked tired and hungry.|$F had no food at all.} \"{May I have some|Can I have a "
    "little|Will you share} {please, $N|with me, $N}?\" asked $F. {At first, $N did not want to share.|\"No, "
    "it is all mine!\" said $N.} But then $N saw that $F was sad. {$N felt bad.|$N thought about it.} \"I am "
    "sorry,\" said $N. \"Here, {this is for you|you can have some} too.\"\n{They sat and ate the $D "
    "together.|Food is better with a friend.} \"Thank you, $N,\" said $F. " END
    "{$N learned that sharing makes everyone happy.|It is good to share.|Sharing is a kind thing to do.}",
    // a fear
    OPEN
    "$s was afraid of $E. {When others played, $N stayed at home.|$s did not tell anyone.|$s hid $W.}\n" DAY
        MEET "{said|asked}, \"Will you come with me to the $P?\" {$N wanted to go, but $s was afraid.|\"I am "
    "afraid of $E,\" said $N.} \"{Hold my hand|Stay next to me|Take a deep breath},\" said $F. \"We "
    "can do it together.\" {So they went, step by step.|So they went, very slowly.} $N was {a "
    "little|still} afraid, but $s did not stop. {Soon, it was not so bad.|And then nothing bad "
    "happened.} \"I did it!\" said $N. {$F was proud of $m.|}\n" END
    "{$N learned to be brave.|To be brave is to try, even when you are afraid.|$N was not afraid of $E any "
    "more.}",
    // something breaks, and the hero tells the truth
    OPEN "$h $G had a $L $Q that was very old. {\"Please be careful with it,\" said $h $G.|\"Do not run near "
         "it,\" said $h $G.}\n" DAY
         "$N ran and jumped in the house. {Crash!|Bang!|Oh no!} The $L $Q fell down and broke. {$N was "
         "scared.|$N hid $W.} \"{Should I|Can I} say it was the wind?\" $s thought. Then $F the $k said, "
         "\"Tell the truth. It is the best thing to do.\"\nSo $N went to $h $G and said, \"I broke the $Q. I "
         "am sorry.\" {$H $G was not angry.|$H $G gave $m a hug.} \"Thank you for telling the truth,\" said "
         "$h $G. \"We can fix it together.\" {They used some glue.|They worked all day.} {Soon the $Q was as "
         "good as new.|Now the $Q looked nice again.} " END
         "{$N learned to tell the truth.|It is always good to tell the truth.|$N learned to be careful and "
         "honest.}",
    // a young animal is lost
    OPEN LIVED DAY "$N was walking to the $P when $s heard a {small|soft|sad} sound. $W, there was a "
                   "{baby|little|tiny} $A. \"{I am lost|I want my mother|I cannot find my home},\" said the "
                   "$A. {$N wanted to help.|$N felt sorry for the $A.} \"Do not be afraid,\" said $N. \"{I "
                   "will help you|We will find your mother}.\"\n$s asked " MEET
                   "for help. {They looked near the $P.|They walked a long way.|They gave the $A some $D.} "
                   "Then they heard a call. It was the mother! The $A ran to its mother {and was very "
                   "happy|as fast as it could}. \"Thank you for your help,\" said the mother.\n" END
                   "{$N felt warm and happy inside.|It feels good to help.|$N learned that even a small help "
                   "is a big help.}",
    // try again
    OPEN LIVED DAY
    "$N wanted to build a $B {at the $P|near the $P}. {$s worked all morning.|$s worked very hard.} But then "
    "{a strong wind came|a big dog ran by|it began to rain} and the $B fell down. " SAD
    "\"I will never build a $B,\" $s said.\nThen " MEET "came by. " ASK
    "\"My $B fell down,\" said $N. \"{Let us try again|We can make it better},\" said $F. {They worked "
    "together.|$F brought wood and $N brought stones.|They put a $L flag on top.} {It took a long time.|It "
    "was hard work.} At last, the $B was done, and it was {big and strong|better than before|very "
    "pretty}. " THANK "\n" END
    "{$N learned to never give up.|If you fall, you can try again.|Together, they could do it.}",
    // a rainy day
    OPEN DAY
    "$N wanted to go to the $P with $F the $k. But it {began to rain|was raining and raining}. {\"I do not "
    "like the rain,\" said $N.|$N looked out of the window and was sad.|\"Now we cannot play,\" said "
    "$N.}\n\"We can play in the house,\" said $F. {They played with a $L $O.|They made a tent with a $L "
    "blanket.|They sang a song about $M.} Then $h $G gave them some $D. {It was so much fun.|They laughed "
    "and laughed.} {After a while|Soon}, the rain stopped and the sun came out. \"Look, a rainbow!\" said "
    "$F. It was red and yellow and blue. {\"It is so pretty,\" said $N.|$N had never seen one before.}\n" END
    "{$N learned that a rainy day can be fun too.|Now $N likes the rain.|After the rain, there is a "
    "rainbow.}",
    // a present
    OPEN LIVED "It was the birthday of $h $G, and $N {had no present|wanted to make a present}. {\"What can "
               "I make?\" $s thought.|$s had no money at all.}\n$s asked " MEET
               "for help. {\"You can make a $L $O,\" said $F.|\"Your $G likes $D,\" said $F.|\"You can sing "
               "a song about $M,\" said $F.} {So they worked all day.|So they went to the $P and found some "
               "flowers.} They {made a card|made a $L card|put everything in a box} and wrote, \"I love "
               "you.\"\nWhen $h $G came home, $N said, \"{Surprise|Happy birthday}!\" {$H $G was so "
               "happy.|$H $G smiled a big smile.} \"This is the best present of all,\" said $h $G. " END
               "{A present made with love is the best present.|$N learned that love is the best gift.}",
    // patience
    OPEN LIVED DAY
    "$N found a {small|tiny|little} seed at the $P. {\"What is it?\" $s asked.|$s showed it to $F the $k.} "
    "\"It is a $Y seed,\" said $F. \"{Put it in the ground|Plant it in the garden} and give it water.\" {$N "
    "did so.|So $N planted the seed.}\nThe next day, $N looked, but there was nothing. {\"Why does it not "
    "grow?\" asked $N.|" SAD
    "} \"You have to wait,\" said $F. {So $N gave it water every day.|$N waited and waited.} {The sun was "
    "warm.|The rain came and went.} One morning, there was a little green leaf! {It grew and grew.|$N jumped "
    "with joy.} Soon there was a big $Y. \"It is so pretty!\" said $N.\n" END
    "{$N learned to wait.|Good things take time.|If you wait, good things will grow.}",
    // practice
    OPEN "$s wanted to learn to $I. {All $h friends could do it.|$h $G could do it very well.} " DAY
         "$N tried to $I. {But it did not work.|But $s fell down.} {\"I cannot do it,\" said $N.|\"It is too "
         "hard,\" said $N.}\n" MEET
         "saw $m. \"{I can show you|Do it like this|Try it slowly},\" said $F. {$N tried again and "
         "again.|They tried every day.} {On the first day, it was hard.|Some days were hard.} But each day, "
         "it was a little better. {At last|Then one day}, $N could $I! \"{Look at me|I can do it},\" said "
         "$N. \"{Well done|Hooray},\" said $F. " THANK "\n" END
         "{$N learned that you get better when you try.|It is good to try again.|$N was proud.}",
    // stuck in a tree
    OPEN DAY
    "$N played with a $L $O at the $P. {$s threw it up high.|A strong wind came.} The $O {flew up|went up} "
    "and got stuck in a tall tree. {$N jumped, but the tree was too tall.|$N could not reach it.} " SAD
    "\nThen " MEET "came by. " ASK
    "\"My $L $O is up in the tree,\" said $N. {$F climbed up the tree.|$F found a long stick.|\"Stand on my "
    "back,\" said $F.} {It was not easy.|They tried two times.} Then the $O fell down {and $N was happy|with "
    "a soft thump}. " THANK "\n" END
    "{With a friend, hard things are easy.|$N learned to ask for help.|Two are better than one.}",
};

// -------- writing a story

static uint64_t random_state = 20240520;

static int choose(int n) {  // 0..n-1, splitmix64
    uint64_t x = random_state += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return (int)((x ^ (x >> 31)) % (uint64_t)n);
}

typedef struct {
    const char *word[128];  // by placeholder letter
    char text[MAX_STORY];
    int length;
} Story;

static void append(Story *s, const char *text, int n) {
    if (s->length + n > MAX_STORY) {
        fprintf(stderr, "make_stories: a story has more than %d bytes\n", MAX_STORY);
        exit(EXIT_FAILURE);
    }
    for (int i = 0; i < n; i++) {
        int end = s->length;  // the end of the text so far, without white space
        while (end > 0 && (s->text[end - 1] == ' ' || s->text[end - 1] == '\n')) end--;
        int begins_line = end == 0 || s->text[s->length - 1] == '\n';
        int begins_sentence = begins_line || (end < s->length && strchr(".!?", s->text[end - 1]));
        if (text[i] == ' ' && (begins_line || end < s->length))
            continue;  // an empty choice leaves two spaces
        if (text[i] == '\n') s->length = end;
        s->text[s->length++] = begins_sentence && text[i] >= 'a' && text[i] <= 'z' ? text[i] - 'a' + 'A'
                                                                                   : text[i];
    }
}

// Returns the first '|' or '}' that belongs to the choice around p.
static const char *end_of_choice(const char *p) {
    for (int depth = 0; depth || (*p != '|' && *p != '}'); p++) depth += (*p == '{') - (*p == '}');
    return p;
}

static void tell(Story *s, const char *p, const char *end) {
    while (p < end) {
        if (*p == '$') {
            const char *word = s->word[(unsigned char)p[1]];
            append(s, word, (int)strlen(word));
            p += 2;
        } else if (*p == '{') {
            const char *choices[16];
            int n = 0;
            do choices[n++] = ++p;
            while (*(p = end_of_choice(p)) == '|');
            const char *chosen = choices[choose(n)];
            tell(s, chosen, end_of_choice(chosen));
            p++;
        } else {
            append(s, p++, 1);
        }
    }
}

#define PICK(list) (list)[choose(COUNT(list))]

static void new_story(Story *s) {
    int girl = choose(2), child = choose(2);
    s->word['N'] = girl ? PICK(girls) : PICK(boys);
    do s->word['F'] = choose(2) ? PICK(girls) : PICK(boys);
    while (s->word['F'] == s->word['N']);
    s->word['s'] = girl ? "she" : "he";
    s->word['h'] = girl ? "her" : "his";
    s->word['H'] = girl ? "Her" : "His";
    s->word['m'] = girl ? "her" : "him";
    s->word['K'] = child ? (girl ? "girl" : "boy") : PICK(creatures);
    s->word['k'] = PICK(creatures);
    s->word['L'] = PICK(colors);
    s->word['O'] = PICK(toys);
    s->word['Q'] = PICK(fragile);
    s->word['P'] = PICK(places);
    s->word['W'] = PICK(spots);
    s->word['D'] = PICK(foods);
    s->word['G'] = PICK(grown_ups);
    s->word['A'] = PICK(babies);
    s->word['B'] = PICK(buildings);
    s->word['I'] = PICK(skills);
    s->word['E'] = PICK(fears);
    s->word['Y'] = PICK(plants);
    s->word['M'] = PICK(songs);
    s->length = 0;
    const char *skeleton = PICK(stories);
    tell(s, skeleton, skeleton + strlen(skeleton));
    append(s, "\n", 1);
}

// -------- files

static void die(const char *what, const char *name) {
    fprintf(stderr, "make_stories: cannot %s %s: %s\n", what, name, strerror(errno));
    exit(EXIT_FAILURE);
}

static void *allocate(size_t count, size_t size) {
    void *p = calloc(count, size);
    if (!p) die("allocate memory for", "the stories");
    return p;
}

// Returns DIR/NAME, in a buffer that is valid until the next call.
static const char *path_in(const char *dir, const char *name) {
    static char path[PATH_MAX];
    if ((size_t)snprintf(path, sizeof path, "%s/%s", dir, name) < sizeof path) return path;
    errno = ENAMETOOLONG;
    die("name", name);
    return NULL;
}

static void must(int failed) {
    if (!failed) return;
    fprintf(stderr, "make_stories: %s\n", gpt2_last_error());
    exit(EXIT_FAILURE);
}

// A table of the hashes (FNV-1a) of all stories written so far.
typedef struct {
    uint64_t *hashes, mask;
} Told;

static int is_new(Told *told, const Story *s) {
    uint64_t h = 0xcbf29ce484222325ull;
    for (int i = 0; i < s->length; i++) h = (h ^ (unsigned char)s->text[i]) * 0x100000001b3ull;
    uint64_t at = h & told->mask;
    for (; told->hashes[at]; at = (at + 1) & told->mask)
        if (told->hashes[at] == h) return 0;
    told->hashes[at] = h;
    return 1;
}

static void write_shard(const char *dir, const char *name, Told *told, long bytes) {
    uint16_t *tokens = allocate((size_t)bytes + MAX_STORY + 1, sizeof *tokens);
    uint32_t n = 0;
    Story s;
    while (n < (uint32_t)bytes) {
        new_story(&s);
        if (!is_new(told, &s)) continue;
        tokens[n++] = BYTE_EOT;
        for (int i = 0; i < s.length; i++) tokens[n++] = (unsigned char)s.text[i];
    }
    const uint32_t header[256] = { 20240520, 1, n };
    must(write_whole(path_in(dir, name), header, tokens, n * sizeof *tokens));
    printf("%s/%s: %u tokens\n", dir, name, n);
    free(tokens);
}

int main(int argc, char **argv) {
    long bytes = TRAIN_BYTES;
    char *end = "";
    if (argc == 4 && !strcmp(argv[2], "--bytes"))
        bytes = strtol(argv[3], &end, 10);
    else if (argc != 2)
        argc = 0;
    if (!argc || *end || bytes < 1 || bytes > MAX_BYTES) {
        fprintf(stderr, "usage: make_stories DIR [--bytes N]   (N from 1 to %d)\n", MAX_BYTES);
        return EXIT_FAILURE;
    }
    Told told = { .mask = 1 };
    while (told.mask < (uint64_t)(bytes + VAL_BYTES) / 64)
        told.mask = told.mask * 2 + 1;  // a story is longer than 128 bytes
    told.hashes = allocate(told.mask + 1, sizeof *told.hashes);
    write_shard(argv[1], "stories_val.bin", &told, VAL_BYTES);
    write_shard(argv[1], "stories_train.bin", &told, bytes);
    must(write_byte_tokenizer(path_in(argv[1], "stories_tokenizer.bin")));
    free(told.hashes);
    if (fflush(stdout)) die("write", "to standard output");
    return EXIT_SUCCESS;
}
